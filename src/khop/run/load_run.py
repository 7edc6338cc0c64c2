"""`khop.load_run`: a trained run opened from its folder, for predictions in Python."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from khop.api.open_graph import Graph
from khop.arguments import path_of
from khop.data.tables.import_state import table_rows
from khop.data.tables.labels import keys_of
from khop.data.tables.packages import pa, without_spec
from khop.data.tables.pipeline import import_tables
from khop.data.tables.rows import TableRows, no_rows
from khop.data.tables.source import OpenSource, SourceFolder
from khop.data.tables.spec import Source
from khop.graph.folder import Folder, import_record
from khop.graph.node_ids import OwnIds, ids_in, recorded_columns
from khop.inference.chunks import InferenceWork, Progress, unwatched
from khop.inference.later_graph import Neighborhood
from khop.inference.link_evaluation import pair_scores
from khop.inference.predictions import Columns, parquet
from khop.kernels.id_table import Keys, StringKeys
from khop.run.build import Run, prepare
from khop.run.check import on_this_machine
from khop.run.contexts import exact_draws_of
from khop.run.parts import in_flight_of, words_of
from khop.run.predict import JoinedRun, predict_later, predict_rows
from khop.run.read import CHECKPOINTS, saved_run, with_options
from khop.run.tasks.link_run_task import LinkTask
from khop.schema import EdgeType, EdgeTypeName, NodeType, edge_type_of
from khop.user_cache import cache_folder

_KEY = "pairs"  # in errors


@dataclass(frozen=True, eq=False)
class PairRows:
    """Consecutive pairs of a table."""

    ids: tuple[Any, Any]  # pyarrow arrays (n): the ids of sources and destinations
    nodes: tuple[Tensor, Tensor]  # int64 (n): nodes of the joined graph, -1 where no node has the id


@dataclass(frozen=True, eq=False)
class Pairs:
    """A table of pairs, opened and checked."""

    source: OpenSource
    columns: tuple[str, str]
    ids: tuple[_Ids, _Ids]

    @classmethod
    @without_spec()
    def open(cls, table: Any, edge_type: EdgeType, joined: JoinedRun) -> Pairs:  # noqa: ANN401
        """Open a file, or a table of pandas, polars or Arrow. ValueError if it lacks a column of ids."""
        columns = _columns(edge_type, joined.base)
        is_file = isinstance(table, str | os.PathLike)
        spec = Source(files=(os.fspath(table),)) if is_file else Source(rows=table)
        source = OpenSource.open(spec, _KEY, SourceFolder(Path(), {})).with_ids(columns)
        source.check(dict.fromkeys(columns, _KEY))
        for column in columns:
            if str(source.table.schema.field(column).type) != "null":  # of an empty table of pandas
                source.id_type(column, f"{_KEY}: {column}")
        return cls(source, columns, (_Ids.of(edge_type[0], joined), _Ids.of(edge_type[2], joined)))

    def __iter__(self) -> Iterator[PairRows]:
        with without_spec():
            for rows in self._rows():
                arrays = rows.column(self.columns[0]), rows.column(self.columns[1])
                nodes = [
                    ids.nodes(keys_of(array, ids.kind, f"{_KEY}: {column}", rows.row))
                    for ids, array, column in zip(self.ids, arrays, self.columns, strict=True)
                ]
                yield PairRows(arrays, (nodes[0], nodes[1]))

    def _rows(self) -> Iterator[TableRows]:
        """Yield the rows of the table; at least one piece, which has the types of the columns."""
        is_empty = True
        for piece in self.source.pieces(self.columns):
            is_empty = False
            yield piece()
        if is_empty:
            yield no_rows(self.source.table, self.columns)


@dataclass(frozen=True, eq=False)
class _Ids:
    """Ids of the nodes of a type in the joined graph."""

    base: OwnIds
    later: OwnIds | None
    places: Tensor | None  # int64 (later nodes): the node of the joined graph

    @classmethod
    def of(cls, node_type: NodeType, joined: JoinedRun) -> _Ids:
        base, later = joined.base, joined.later
        own = ids_in(base.path, base.arrays, node_type, base.num_nodes(node_type))
        if later is None or node_type not in later.schema.node_types:
            return cls(own, None, None)
        of_later = ids_in(later.path, later.arrays, node_type, later.num_nodes(node_type))
        return cls(own, of_later, joined.joined.places[node_type])

    @property
    def kind(self) -> Any:  # noqa: ANN401
        return "string" if isinstance(self.base.stored, StringKeys) else "int64"

    def nodes(self, keys: Keys) -> Tensor:
        """Return the node of each id; -1 where there is none."""
        found = torch.from_numpy(self.base.index.find(self.base.stored, keys))
        if self.later is None or self.places is None:
            return found
        at = torch.from_numpy(self.later.index.find(self.later.stored, keys))
        is_later = (found < 0) & (at >= 0)
        found[is_later] = self.places[at[is_later]]
        return found


def _columns(edge_type: EdgeType, base: Folder) -> tuple[str, str]:
    """Return the recorded id columns of an edge type; ValueError if there are none."""
    found = recorded_columns(base, edge_type)
    if found is None:
        raise ValueError(
            f"{base.path}: records no table of {words_of(edge_type)!r}, so the id columns of pairs are "
            "unknown; import the graph from tables"
        )
    return found


@dataclass(frozen=True, eq=False)
class PairPredictions:
    """Scores of pairs, computed lazily, in the order of their table."""

    task: LinkTask
    joined: JoinedRun
    pairs: Pairs
    progress: Progress

    def pieces(self) -> Iterator[Columns]:
        """Yield `source_id`, `destination_id` and `score` of consecutive pairs.

        The score of a pair with an unknown id is null. The neighborhoods of `evaluation.batch_size` pairs are
        in memory at a time.
        """
        done, total = 0, table_rows(self.pairs.source)
        for rows in self.pairs:
            yield self._scored(rows)
            done += rows.nodes[0].numel()
            self.progress(done, max(done, total))

    def _scored(self, rows: PairRows) -> Columns:
        pyarrow, (sources, destinations) = parquet(), rows.nodes
        known = ((sources >= 0) & (destinations >= 0)).nonzero().squeeze(1)
        scores = torch.full((sources.numel(),), torch.nan)
        for at in known.split(self.joined.run.config.evaluation.batch_size):
            scores[at] = self._scores(sources[at], destinations[at]).to(scores.dtype)
        is_unknown = torch.ones_like(sources, dtype=torch.bool)
        is_unknown[known] = False
        return {
            "source_id": rows.ids[0],
            "destination_id": rows.ids[1],
            "score": pyarrow.array(scores.numpy(), mask=is_unknown.numpy()),
        }

    def _scores(self, sources: Tensor, destinations: Tensor) -> Tensor:
        source, _, destination = self.task.edge_type
        config = self.joined.run.config

        def computed(near: Neighborhood, graph: Graph) -> Tensor:
            pairs = near.local(source, sources), near.local(destination, destinations)
            evaluation = config.evaluation
            work = InferenceWork(
                evaluation.batch_size, unwatched, in_flight_of(config), chunk_edges=evaluation.batch_edges
            )
            draws, edge_type = exact_draws_of(config, graph), self.task.edge_type
            return pair_scores(self.task.model, graph, graph.features, edge_type, pairs, work, draws)

        seeds = {source: sources}
        seeds[destination] = torch.cat([seeds.get(destination, sources[:0]), destinations])
        return self.joined.near(seeds, computed)


def predict_pairs(
    run: Run,
    pairs: Any,  # noqa: ANN401
    later: Path | None = None,
    progress: Progress = unwatched,
) -> PairPredictions:
    """Open pairs of ids, to be scored by the model of a link-prediction run over all neighbors.

    `pairs` is a file, or a table of pandas, polars or Arrow, with the columns of ids that the table of the
    run's edge type had. Ids may be those of new nodes of `later`, a folder of later data. Messages pass over
    all edges of the graph and of the later data. Raises ValueError for runs of other tasks, and for runs
    with a time window.
    """
    task = run.run_task
    if not isinstance(task, LinkTask):
        raise ValueError(
            f"--pairs: the task of the run is {run.config.task.kind}; only link-prediction runs score pairs; "
            "give a run with that task"
        )
    exact_draws_of(run.config, task.whole)  # an error comes before any work
    joined = JoinedRun.of(run, later)
    return PairPredictions(task, joined, Pairs.open(pairs, task.edge_type, joined), progress)


def unscored(unknown: int, pairs: int) -> tuple[str, ...]:
    """Return a note of pairs with unknown ids; none without any."""
    return (f"{unknown:,} of {pairs:,} pairs have an unknown id: their score is null",) if unknown else ()


CHECKPOINT_NAMES = ("best", "last")
Later = str | os.PathLike[str] | Mapping[EdgeTypeName, Any]


@dataclass(frozen=True, eq=False)
class Predicted:
    """Predictions for the new nodes of later data."""

    table: Any  # pyarrow.Table: original ids, predictions, scores of classes or pairs, units
    notes: tuple[str, ...]  # rows left out, unknown categories, nodes without a date, pairs with unknown ids


@dataclass(frozen=True, eq=False)
class LoadedRun:
    """A trained run: its graph, task and model with the weights of a checkpoint."""

    folder: Path
    run: Run

    def predict(
        self,
        later: Later | None = None,
        *,
        pairs: Any = None,  # noqa: ANN401
        rows: Any = None,  # noqa: ANN401
    ) -> Predicted:
        """Compute predictions for new nodes or dated rows, or scores of pairs of nodes.

        Args:
            later: Folder that `khop import --encoders` has written, or a mapping from node types and edge
                types, such as "user buys item", to tables: pandas, polars, Arrow or paths of files, with the
                columns of the graph's tables. Tables of nodes have new nodes; edges may also name nodes of
                the graph. Edges with unknown ids are left out and counted in `notes`.
            pairs: Pairs to score by a link-prediction run: a table, or the path of a file, with the id
                columns of its edge type's table. The score of a pair with an unknown id is null.
            rows: Rows to predict by a run with seed tables: a table, or the path of a file, with the ids and
                the dates of these tables.
        Returns:
            A table with original ids, predictions and units, and notes.
        """
        if rows is not None:
            if later is not None or pairs is not None:
                raise ValueError(
                    "rows cannot be combined with later or pairs, because rows refer to nodes of the graph; "
                    "give rows alone"
                )
            pieces = predict_rows(self.run, rows).pieces()
            return Predicted(pa.concat_tables([pa.table(columns) for columns in pieces]), ())
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
            raise ValueError(
                "later is missing: give new nodes and edges, or pairs= for a link-prediction run"
            )
        else:
            found = predict_later(self.run, later)
            pieces, notes = found.pieces(), notes + found.notes
        table = pa.concat_tables([pa.table(columns) for columns in pieces])
        notes += () if pairs is None else unscored(table["score"].null_count, len(table))
        return Predicted(table, notes)


def load_run(
    run: str | os.PathLike[str],
    allow_code: Sequence[str] = (),
    *,
    checkpoint: str = "best",
    device: str | None = None,
) -> LoadedRun:
    """Load the graph, task and trained model of a run folder that `khop train` has written.

    Args:
        run: Run folder.
        allow_code: Packages from which custom classes of the run may be imported (default: none).
        checkpoint: "best" (default) or "last".
        device: Device of the model; default: that of the run, or the CPU on a machine without a GPU.
    Returns:
        The run, whose `predict` computes predictions for new nodes or pairs.
    Raises:
        ValueError: The folder is not a run, or it needs code from a package that is not allowed.
    Example:
        >>> import subprocess, sys
        >>> options = ["--epochs=1", "--fanouts=2", "--hidden=16", "--out=runs/debian"]
        >>> command = [sys.executable, "-m", "khop", "train", "debian", *options]
        >>> done = subprocess.run(command, check=True, capture_output=True)
        >>> run = khop.load_run("runs/debian")
    """
    folder = path_of("run", run)
    if isinstance(allow_code, str):
        raise ValueError(f"allow_code {allow_code!r}: must be a list, as [{allow_code!r}]")
    if checkpoint not in CHECKPOINT_NAMES:
        raise ValueError(f"checkpoint {checkpoint!r}: must be one of {', '.join(CHECKPOINT_NAMES)}")
    raw = saved_run(folder, allow_code, _warn)
    raw = on_this_machine(raw if device is None else with_options(raw, {"device": device}), _warn)
    weights = folder / CHECKPOINTS / checkpoint
    made = prepare(raw, cache_folder(), checkpoint=weights)
    made.restore(weights, _warn, () if device is None else ("device",))
    return LoadedRun(folder, made)


def _spec(later: Mapping[EdgeTypeName, Any], record: Mapping[str, Any], home: str) -> dict[str, Any]:
    """Return the import spec for tables by type, with the recorded id columns."""
    nodes: dict[str, Any] = {}
    edges: dict[str, Any] = {}
    for type_, table in later.items():
        rows = {"files": [os.fspath(table)]} if isinstance(table, str | os.PathLike) else {"rows": table}
        if isinstance(type_, str) and type_ in record["nodes"]:
            column = record["nodes"][type_]["id"].get("column")
            if column is None:
                raise ValueError(
                    f"{type_}: {home} takes the nodes of this type from the ids of edges; give edges alone"
                )
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
