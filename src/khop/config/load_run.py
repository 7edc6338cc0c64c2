"""`khop.load_run`: a trained run, rebuilt from its folder, for predictions in Python."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from khop.arguments import path_of
from khop.config.build import Run, prepare
from khop.config.predict_later import predict_later
from khop.config.predict_pairs import predict_pairs
from khop.config.read import with_options
from khop.config.saved_run import CHECKPOINTS, saved_run
from khop.graph.import_record import import_record
from khop.importing.import_tables import import_tables
from khop.importing.packages import pa
from khop.schema import EdgeTypeName, edge_type_of
from khop.user_cache import cache_folder

CHECKPOINT_NAMES = ("best", "last")
Later = str | os.PathLike[str] | Mapping[EdgeTypeName, Any]


@dataclass(frozen=True, eq=False)
class Predicted:
    """Predictions for the new nodes of later data."""

    table: Any  # pyarrow.Table: the users' ids, predictions, scores of classes or pairs, units
    notes: tuple[str, ...]  # rows left out, unknown categories


@dataclass(frozen=True, eq=False)
class LoadedRun:
    """A trained run: its graph, task and model with the weights of a checkpoint."""

    folder: Path
    run: Run

    def predict(self, later: Later | None = None, *, pairs: Any = None) -> Predicted:  # noqa: ANN401
        """Predict new nodes: of a folder that `khop import --encoders` has written, or of tables.

        Tables are a mapping from node types and edge types, such as "user buys item", to tables of pandas,
        polars or Arrow, or to paths of files, with the columns that the tables of the graph had, and
        are encoded alike. Tables of nodes hold new nodes; edges may name nodes of the graph. Edges with
        an id that nothing has are left out and counted in `notes`.

        A run of links scores `pairs`: a table, or the path of a file, with the columns of ids that the table
        of its edge type had. `later` has their new nodes, if there are some. The score of a pair with an id
        that nothing has is null.
        """
        if later is None or not isinstance(later, Mapping):
            return self._predicted(None if later is None else path_of("later", later), pairs, ())
        graph = self.run.graph.folder
        if graph is None or not import_record(graph):
            raise ValueError(
                f"{self.run.config.graph}: the graph has no encoders for tables; import it from tables"
            )
        with tempfile.TemporaryDirectory(prefix="khop-later-") as folder:
            out = Path(folder, "later")
            spec = _spec(later, import_record(graph), str(graph.path))
            done = import_tables(spec, out, encoders=graph.path, threads=self.run.config.threads)
            return self._predicted(out, pairs, done.notes)

    def _predicted(self, later: Path | None, pairs: Any, notes: tuple[str, ...]) -> Predicted:  # noqa: ANN401
        if pairs is not None:
            pieces = predict_pairs(self.run, pairs, later).pieces()
        elif later is None:
            raise ValueError("later is missing: give new nodes and edges, or pairs= for a run of links")
        else:
            pieces = predict_later(self.run, later).pieces()
        return Predicted(pa.concat_tables([pa.table(columns) for columns in pieces]), notes)


def load_run(
    run: str | os.PathLike[str],
    allow_code: Sequence[str] = (),
    *,
    checkpoint: str = "best",
    device: str | None = None,
) -> LoadedRun:
    """Load a run folder that `khop train` has made: graph, task, and model with trained weights.

    Classes of your own that the run names are imported only from the packages in `allow_code`. `checkpoint`
    is "best" or "last"; `device` replaces that of the run.
    """
    folder = path_of("run", run)
    if isinstance(allow_code, str):
        raise ValueError(f"allow_code {allow_code!r}: must be a list, as [{allow_code!r}]")
    if checkpoint not in CHECKPOINT_NAMES:
        raise ValueError(f"checkpoint {checkpoint!r}: must be one of {', '.join(CHECKPOINT_NAMES)}")
    raw = saved_run(folder, allow_code, _warn)
    if device is not None:
        raw = with_options(raw, {"device": device})
    weights = folder / CHECKPOINTS / checkpoint
    made = prepare(raw, cache_folder(), checkpoint=weights)
    made.restore(weights, _warn, () if device is None else ("device",))
    return LoadedRun(folder, made)


def _spec(later: Mapping[EdgeTypeName, Any], record: Mapping[str, Any], home: str) -> dict[str, Any]:
    """Return the spec of an import of tables by type, with the recorded columns of ids."""
    nodes: dict[str, Any] = {}
    edges: dict[str, Any] = {}
    for type_, table in later.items():
        rows = {"files": [os.fspath(table)]} if isinstance(table, str | os.PathLike) else {"rows": table}
        if isinstance(type_, str) and type_ in record["nodes"]:
            column = record["nodes"][type_]["id"].get("column")
            if column is None:
                raise ValueError(f"{type_}: its nodes are the ids of edges in {home}; give edges alone")
            nodes[type_] = {**rows, "id": column}
            continue
        name = " ".join(edge_type_of(type_)) if not isinstance(type_, str) or " " in type_ else type_
        if name not in record["edges"]:
            there = ", ".join([*record["nodes"], *record["edges"]])
            raise ValueError(f"{name!r}: {home} has no table of this type; there are {there}")
        ends = {end: record["edges"][name][end] for end in ("source", "destination")}
        edges[name] = {**rows, **ends, "orphans": "drop"}
    for name in edges:
        source, _, destination = edge_type_of(name)
        nodes = {source: {}, destination: {}} | nodes
    if not nodes:
        raise ValueError("later is empty: give tables of new nodes, by type")
    return {"nodes": nodes, "edges": edges}


def _warn(sentence: str) -> None:
    warnings.warn(sentence, stacklevel=3)
