"""Predictions of a run as tables with original ids, class names and units, and their files.

Files are .npy with ids in a second file, or Parquet with ids and names. They are written atomically.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from khop.distributed.processes.group import Group
from khop.graph.atomic import refuse_dangling
from khop.graph.node_ids import LABEL, IdsByNode, Names
from khop.graph.npy import write_array
from khop.inference.evaluation import EdgeOutputs, SplitOutputs
from khop.inference.link_evaluation import Scores, ends_of_links
from khop.kernels.id_table import StringKeys
from khop.sampling.links.link_seeds import PADDING, LinkList, Links
from khop.schema import EdgeType, NodeType
from khop.training.metrics import Places
from khop.training.multi_label_metrics import UNKNOWN, entries_of


def parquet() -> ModuleType:
    """Import pyarrow, an optional dependency; ValueError with the remedy if it is missing."""
    try:
        import_module("pyarrow.parquet")
    except ModuleNotFoundError:
        raise ValueError("Parquet files need pyarrow: pip install pyarrow, or write .npy") from None
    return import_module("pyarrow")


def check_new(*files: Path) -> None:
    """Raise ValueError if a file exists, or could not be written, so that errors appear before the work."""
    for file in files:
        refuse_dangling(file)
        if not file.parent.is_dir():
            raise ValueError(f"{file}: there is no folder {file.parent}")
        if file.exists():
            raise ValueError(f"{file}: exists already; remove it or choose another name")


def check_parquet(path: Path, option: str) -> None:
    """Raise ValueError unless `path` is a new Parquet file; `option` names it in the error."""
    if path.suffix != ".parquet":
        raise ValueError(f"{option} {path}: give a name that ends in .parquet")
    parquet()
    check_new(path)


def own_type(ids: IdsByNode) -> Any:  # noqa: ANN401
    """Return the pyarrow type of the users' ids."""
    return parquet().string() if ids.kind == "string" else parquet().int64()


def own_values(ids: IdsByNode, nodes: Tensor) -> list[str] | npt.NDArray[np.int64]:
    """Return the users' ids of some nodes."""
    keys = ids.at(nodes)
    return keys.strings() if isinstance(keys, StringKeys) else keys


def id_columns(ids: IdsByNode | None, nodes: Tensor, own: str, node: str) -> dict[str, Any]:
    """Return pyarrow columns of some nodes: the users' ids as `own`, if they are stored, and the nodes."""
    pyarrow = parquet()
    column = {} if ids is None else {own: pyarrow.array(own_values(ids, nodes), own_type(ids))}
    return {**column, node: pyarrow.array(nodes.numpy())}


def write_parquet(path: Path, pieces: Iterator[Mapping[str, Any]]) -> int:
    """Write pieces of columns, one row group each, and return the number of rows.

    The file appears when it is complete.
    """
    pyarrow = parquet()
    beside = path.with_name(f".{path.name}.new")
    rows, writer = 0, None
    try:
        for piece in pieces:
            table = pyarrow.table(dict(piece))
            writer = writer or pyarrow.parquet.ParquetWriter(beside, table.schema)
            writer.write_table(table)
            rows += table.num_rows
        assert writer is not None, "at least one piece"
        writer.close()
        beside.replace(path)
    finally:
        if writer is not None:
            writer.close()
        beside.unlink(missing_ok=True)
    return rows


LabelKind = Literal["by dtype", "numbers", "sets"]  # "by dtype": classes, sets of classes or numbers
_ROWS = 1 << 16  # of a row group
Columns = dict[str, Any]  # name -> pyarrow array


@dataclass(frozen=True, eq=False)
class NodePredictions:
    """Outputs for nodes of one type: a row per node, split by split."""

    node_type: NodeType
    label: str  # the column of labels
    splits: Mapping[str, SplitOutputs]
    kind: LabelKind = "by dtype"
    record: Mapping[str, Any] | None = None  # of the labels; None: that of the import

    def here(self) -> NodePredictions:
        """Return these predictions: every rank has them."""
        return self

    def pieces(self, names: Names) -> Iterator[Columns]:
        """Yield `id`, `node`, `original_id`, `split`, `time` of dated rows, labels and predictions."""
        record = names.labels.get(self.node_type, {}) if self.label == LABEL else {}
        record = record if self.record is None else self.record
        original_ids = names.original_ids.get(self.node_type)
        for split, stored in self.splits.items():
            of_split = replace(stored, labels=of_kind(stored.labels, self.kind))
            for at in torch.arange(of_split.nodes.numel()).split(_ROWS):
                nodes = of_split.nodes[at]
                columns = id_columns(names.ids.get(self.node_type), nodes, "id", "node")
                if original_ids is not None:
                    columns["original_id"] = parquet().array(original_ids.at(nodes))
                columns["split"] = parquet().array([split] * at.numel())
                if of_split.times is not None:
                    columns["time"] = dates_of(of_split.times[at], record)
                yield columns | labels_of(of_split.labels[at], record) | predicted(of_split, at, record)


@dataclass(frozen=True, eq=False)
class LinkPredictions:
    """Scores of links and of the negatives of each: a row per link, split by split, type by type."""

    edge_types: tuple[EdgeType, ...]
    splits: Mapping[str, tuple[LinkList, Scores]]  # links, and by type (n) scores, (n, k) of their negatives

    def here(self) -> LinkPredictions:
        """Fetch the ends of all links, 16 bytes a link. Collective where ranks hold them in parts."""
        fetched = {
            split: (
                links
                if isinstance(links, Links)
                else Links({t: ends_of_links(links, t) for t in self.edge_types}),
                scored,
            )
            for split, (links, scored) in self.splits.items()
        }
        return replace(self, splits=fetched)

    def pieces(self, names: Names) -> Iterator[Columns]:
        """Yield ids and nodes of both ends, `split`, `score`, and `rank` among the link's negatives.

        Links that are compared with labeled pairs have the column `label`, and the pairs too, instead of
        `rank`. Of several edge types, first `edge_type`, as "user buys item".
        """
        for split, (links, scored) in self.splits.items():
            for edge_type in self.edge_types:
                yield from self._of_type(names, split, edge_type, links, scored[edge_type])

    def _of_type(
        self, names: Names, split: str, edge_type: EdgeType, links: LinkList, scored: tuple[Tensor, Tensor]
    ) -> Iterator[Columns]:
        pyarrow, (source, _, destination), (scores, negatives) = parquet(), edge_type, scored
        given = links.negatives if isinstance(links, Links) else None
        labels = links.labels if isinstance(links, Links) and given is None else None
        ranks = ranks_of(scores, negatives, None if given is None else given[edge_type] != PADDING)
        for at in torch.arange(scores.numel()).split(_ROWS):
            sources, destinations = links.rows(edge_type, at).edges
            words = {"edge_type": pyarrow.array([" ".join(edge_type)] * at.numel())}
            yield {
                **(words if len(self.edge_types) > 1 else {}),
                **id_columns(names.ids.get(source), sources, "source_id", "source"),
                **id_columns(names.ids.get(destination), destinations, "destination_id", "destination"),
                "split": pyarrow.array([split] * at.numel()),
                "score": pyarrow.array(scores[at].float().numpy()),
                **(
                    {"rank": pyarrow.array(ranks[at].double().numpy())}
                    if labels is None
                    else {"label": pyarrow.array(labels[edge_type][at].long().numpy())}
                ),
            }


def ranks_of(scores: Tensor, negatives: Tensor, given: Tensor | None = None) -> Tensor:
    """Return the rank of each link (n) among its negatives (n, k), from 1; ties count half.

    `given`, bool (n, k), is False for entries that pad a row; None if all are negatives.
    """
    return Places.of(scores, negatives, given).ranks


@dataclass(frozen=True, eq=False)
class EdgePredictions:
    """Outputs for edges of one type: a row per edge, split by split."""

    edge_type: EdgeType
    splits: Mapping[str, EdgeOutputs]
    kind: LabelKind = "by dtype"

    def here(self) -> EdgePredictions:
        """Return these predictions: every rank has them."""
        return self

    def pieces(self, names: Names) -> Iterator[Columns]:
        """Yield ids and nodes of both ends, `split`, then labels and predictions (see `predicted`)."""
        source, _, destination = self.edge_type
        for split, stored in self.splits.items():
            of_split = SplitOutputs(stored.edges.T, of_kind(stored.labels, self.kind), stored.outputs)
            for at in torch.arange(of_split.labels.shape[0]).split(_ROWS):
                sources, destinations = stored.edges[:, at]
                yield {
                    **id_columns(names.ids.get(source), sources, "source_id", "source"),
                    **id_columns(names.ids.get(destination), destinations, "destination_id", "destination"),
                    "split": parquet().array([split] * at.numel()),
                    **labels_of(of_split.labels[at], {}),
                    **predicted(of_split, at, {}),
                }


Predictions = NodePredictions | LinkPredictions | EdgePredictions  # for one or several splits


def of_kind(labels: Tensor, kind: LabelKind) -> Tensor:
    """Return labels in the dtype of their kind: numbers are floats, and sets int8 with -1 for unknown."""
    if kind == "numbers":
        return labels if labels.is_floating_point() else labels.double()
    return (
        entries_of(labels)
        if kind == "sets" or (labels.dim() > 1 and not labels.is_floating_point())
        else labels
    )


def dates_of(times: Tensor, record: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Return times as timestamps in UTC; as integers if the record does not tell their unit."""
    pyarrow = parquet()
    found, unit = pyarrow.array(times.numpy()), record.get("time_unit")
    return found if unit is None else found.cast(pyarrow.timestamp(unit, "UTC"))


def labels_of(labels: Tensor, record: Mapping[str, Any]) -> Columns:
    """Return the column `label`: class names, lists of them, or numbers; null where it is unknown.

    A set of classes is unknown if one of its entries is.
    """
    if labels.is_floating_point():
        return {"label": _numbers(labels)}
    if labels.dim() > 1:
        return {"label": _lists(labels == 1, record, (labels == UNKNOWN).any(1).tolist())}
    return {"label": _named(labels, record, (labels < 0).numpy())}


def predicted(split: SplitOutputs, at: Tensor, record: Mapping[str, Any]) -> Columns:
    """Return the columns of some outputs, by the kind of their labels (see `of_kind`).

    Classes: `prediction`, its `score` (a probability), and `scores` of all classes. Several classes per node:
    the same, with lists. Numbers: `prediction`, and `unit` if the import has recorded one. Otherwise
    `output`, as the model gives it.
    """
    pyarrow, outputs, labels = parquet(), split.outputs[at].float(), split.labels[at]
    if labels.dim() == 1 and not labels.is_floating_point() and outputs.shape[1] > 1:
        shares = outputs.softmax(1)
        score, best = shares.max(1)
        return {
            "prediction": _named(best, record),
            "score": pyarrow.array(score.numpy()),
            "scores": _rows(shares),
        }
    if labels.is_floating_point() and outputs.numel() == labels.numel():
        unit = {"unit": pyarrow.array([record["unit"]] * at.numel())} if record.get("unit") else {}
        return {"prediction": _numbers(split.outputs[at].reshape(labels.shape)), **unit}
    if labels.shape == outputs.shape:
        return {"prediction": _lists(outputs > 0, record), "scores": _rows(outputs.sigmoid())}
    return {"output": _rows(outputs)}


def _numbers(values: Tensor) -> Any:  # noqa: ANN401
    """Return float64 numbers, null for NaN; rows of several numbers are lists."""
    wide = values.double()
    return parquet().array(wide.numpy(), from_pandas=True) if wide.dim() == 1 else _rows(wide)


def _named(numbers: Tensor, record: Mapping[str, Any], unknown: Any = None) -> Any:  # noqa: ANN401
    pyarrow, classes = parquet(), record.get("classes")
    at = pyarrow.array(numbers.long().numpy(), mask=unknown)
    return pyarrow.array(classes, pyarrow.string()).take(at) if classes else at


def _lists(chosen: Tensor, record: Mapping[str, Any], unknown: list[bool] | None = None) -> Any:  # noqa: ANN401
    pyarrow, classes = parquet(), record.get("classes") or list(range(chosen.shape[1]))
    rows = [
        None if unknown is not None and unknown[at] else [classes[n] for n in row.nonzero().flatten()]
        for at, row in enumerate(chosen)
    ]
    return pyarrow.array(rows, pyarrow.list_(pyarrow.array(classes).type))


def _rows(values: Tensor) -> Any:  # noqa: ANN401
    flat = parquet().array(values.reshape(-1).numpy())
    return parquet().FixedSizeListArray.from_arrays(flat, values.shape[1])


_ENDINGS = (".npy", ".parquet")
_GROUP_BYTES = 32 << 20  # size of a row group


@dataclass(frozen=True)
class RowOutput:
    """One file with the rows of a node type."""

    path: Path
    node_type: NodeType
    column: str  # name of the rows' column in Parquet
    count: int
    nodes: Tensor | None  # int64 (count); None: all nodes, in order
    original_ids: IdsByNode | None  # for Parquet; None if the graph has none
    own_ids: IdsByNode | None = None  # the user's ids, for Parquet; None if the graph stores none

    @property
    def ids_path(self) -> Path:
        """Path of the ids of a .npy file's rows."""
        return self.path.with_name(f"{self.path.stem}.ids.npy")

    @property
    def files(self) -> tuple[Path, ...]:
        """Files that exist after writing."""
        return (self.path,) if self.path.suffix == ".parquet" else (self.path, self.ids_path)

    def of_rank(self, rank: int, first: int, count: int) -> RowOutput:
        """Return the output of `count` rows from `first` on, which a rank has computed."""
        path = self.path.with_name(f"{self.path.stem}.rank-{rank}{self.path.suffix}")
        rows = slice(first, first + count)
        nodes = torch.arange(rows.start, rows.stop) if self.nodes is None else self.nodes[rows]
        return replace(self, path=path, count=count, nodes=nodes)

    def check(self, *, replaces: bool = False) -> None:
        """Raise ValueError if the file could not be written, so that errors appear before the computation.

        With `replaces`, files that exist are replaced.
        """
        if self.path.suffix not in _ENDINGS:
            raise ValueError(f"{self.path}: give a name that ends in {' or '.join(_ENDINGS)}")
        if self.path.suffix == ".parquet":
            parquet()
        check_new(*(file for file in self.files if not (replaces and file.is_file())))

    def write(self, rows: Tensor, file: Path, group: Group) -> None:
        """Write rows that are mapped from the .npy file `file`, atomically. Collective."""
        if self.path.suffix == ".parquet":
            self._write_parquet(rows, file.with_suffix(".parquet"), group)
        elif group.rank == 0:
            ids = file.with_suffix(".ids")
            write_array(ids, "int64", (self.count,), self._ids(1 << 20), lambda size: None)
            ids.rename(self.ids_path)
            file.rename(self.path)
        group.barrier()

    def _write_parquet(self, rows: Tensor, file: Path, group: Group) -> None:
        size = max(1, _GROUP_BYTES // max(1, rows[:1].nbytes))
        pieces = _pieces(self.count, size)
        if group.rank > 0:
            for _ in pieces:
                group.barrier()  # writing takes longer than the time-out of a rank that waits silently
            return
        pyarrow = parquet()
        schema = pyarrow.schema(self._fields(pyarrow, rows))
        with pyarrow.parquet.ParquetWriter(file, schema) as writer:
            for piece in pieces:
                writer.write_table(pyarrow.table(self._arrays(pyarrow, schema, rows, piece), schema=schema))
                group.barrier()
        file.rename(self.path)

    def _fields(self, pyarrow: ModuleType, rows: Tensor) -> list[object]:
        number = pyarrow.from_numpy_dtype(rows[:0].numpy().dtype)
        names = ["node"] if self.original_ids is None else ["node", "original_id"]
        own = [] if self.own_ids is None else [pyarrow.field("id", own_type(self.own_ids), nullable=False)]
        return [
            *own,
            *(pyarrow.field(name, pyarrow.int64(), nullable=False) for name in names),
            pyarrow.field(self.column, pyarrow.list_(number, math.prod(rows.shape[1:]))),
        ]

    def _arrays(
        self,
        pyarrow: ModuleType,
        schema: Any,  # noqa: ANN401
        rows: Tensor,
        piece: slice,
    ) -> list[object]:
        ids = self._ids_of(piece)
        flat = pyarrow.array(rows[piece].reshape(-1).numpy())
        of_rows = pyarrow.FixedSizeListArray.from_arrays(flat, type=schema.field(self.column).type)
        original = [] if self.original_ids is None else [pyarrow.array(self.original_ids.at(ids))]
        own = [] if self.own_ids is None else [pyarrow.array(own_values(self.own_ids, ids))]
        return [*own, pyarrow.array(ids.numpy()), *original, of_rows]

    def _ids(self, size: int) -> Iterator[npt.NDArray[np.int64]]:
        for piece in _pieces(self.count, size):
            yield self._ids_of(piece).numpy()

    def _ids_of(self, piece: slice) -> Tensor:
        return torch.arange(piece.start, piece.stop) if self.nodes is None else self.nodes[piece]


def check_outputs(outputs: Sequence[RowOutput], work_folder: Path) -> None:
    """Raise ValueError if the files could not be written.

    An attempt that is killed between two files leaves the first one and `work_folder`, and is continued.
    """
    is_begun = work_folder.is_dir() and not all(file.exists() for each in outputs for file in each.files)
    for output in outputs:
        output.check(replaces=is_begun)


def _pieces(count: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]
