"""Tables of nodes and edges as users pass them, with their checks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from khop.arguments import instance_of, mapping_of, whole_number
from khop.graph import layout
from khop.graph.folder import ORIGINAL_ID
from khop.graph.inputs import (
    Array,
    Given,
    Quantized,
    SparseColumn,
    SparseMatrix,
    check_splits,
    is_sparse,
    refuse_numeric_mask,
    sparse_column,
    tensor_of,
)
from khop.graph.manifest import EdgeEntry, NodeEntry
from khop.graph.node_ids import GivenIds, check_distinct, given_ids, index_bytes, kind_of
from khop.kernels.csc import INDEX_DTYPES, index_dtype
from khop.kernels.id_table import Keys
from khop.schema import EdgeType, EdgeTypeName, NodeType, edge_type_of

_INT64_BYTES = 8
Numbers = Tensor | npt.ArrayLike  # also arrays, lists and Series
NodeColumn = Array | Quantized | SparseColumn | SparseMatrix


@dataclass(frozen=True, eq=False)
class AsFloat16:
    """A wider floating-point column that is stored as float16, converted while it is written."""

    values: Array


@dataclass(frozen=True, eq=False)
class NodeTable:
    """The nodes of one type, ids 0 to count - 1.

    Splits of the same group must not overlap. The group is the part of the name after the first dot:
    "train.0" and "val.0" must not overlap, "train.0" and "val.1" may.

    Args:
        count: Number of nodes. None (default): the number of rows of a column.
        columns: Columns (count, ...) by name: tensors, arrays, `khop.quantize` results or sparse
            matrices. Default none.
        splits: Nodes by name: ids, kept in their order, or a boolean mask, as a tensor, an array, a list
            or a Series. Default none.
        num_classes: Number of classes of each label column. In them -1 is "unknown"; floating-point labels
            use NaN and are stored as int64. Default none.
        ids: Users' ids of the nodes, text or integers: distinct, one per node. Default None.
        unknown: Regression targets, in which NaN is "unknown"; default none.
    Example:
        >>> columns, splits = {"y": torch.tensor([0, 1, -1])}, {"train": [0, 1]}
        >>> table = khop.NodeTable(columns=columns, splits=splits, num_classes={"y": 2})
        >>> graph = khop.open_graph(khop.write_graph(tmp / "graph", {"item": table}, {}))
        >>> graph.split("train")
        {'item': tensor([0, 1])}
    """

    count: int | None = None
    columns: Mapping[str, NodeColumn | AsFloat16] = field(default_factory=dict)
    splits: Mapping[str, Numbers] = field(default_factory=dict)
    num_classes: Mapping[str, int] = field(default_factory=dict)
    ids: GivenIds | None = None
    unknown: Collection[str] = ()


@dataclass(frozen=True, eq=False)
class EdgeChunks:
    """The edges of one type in chunks, which are read once, in order.

    Args:
        chunks: One `EdgeTable` per chunk, all with the same columns.
        reverse: Edge type under which the edges are also written in the opposite direction; default None.
    Example:
        >>> days = (khop.EdgeTable(torch.tensor([day]), torch.tensor([day + 1])) for day in range(3))
        >>> edges = {"node to node": khop.EdgeChunks(days)}
        >>> path = khop.write_graph(tmp / "log", {"node": khop.NodeTable(4)}, edges)
        >>> khop.open_graph(path).num_edges("node to node")
        3
    """

    chunks: Iterable[EdgeTable]
    reverse: EdgeTypeName | None = None


@dataclass(frozen=True, eq=False)
class EdgeTable:
    """The edges of one type, in any order.

    Edges with the same destination keep their order. Arrays may be mapped from files larger than memory.

    Args:
        sources: Ids of the source type, integers (edges).
        destinations: Ids of the destination type, integers (edges).
        columns: Columns (edges, ...) by name, in edge order; default none.
        reverse_of: Edge type with the same edges in the opposite direction; default None.
    Example:
        >>> columns = {"stars": torch.tensor([5, 3])}
        >>> buys = khop.EdgeTable(torch.tensor([0, 1]), torch.tensor([2, 2]), columns)
        >>> nodes = {"user": khop.NodeTable(2), "item": khop.NodeTable(3)}
        >>> graph = khop.open_graph(khop.write_graph(tmp / "shop", nodes, {"user buys item": buys}))
        >>> graph.in_degrees("user buys item", [0, 2])
        tensor([0, 2])
    """

    sources: Array
    destinations: Array
    columns: Mapping[str, Array | Quantized] = field(default_factory=dict)
    reverse_of: EdgeTypeName | None = None


@dataclass(frozen=True)
class GivenNodes:
    """A checked NodeTable."""

    entry: NodeEntry
    columns: Mapping[str, Given]
    splits: Mapping[str, Given]
    ids: Keys | None

    @classmethod
    def of(cls, node_type: NodeType, table: NodeTable) -> GivenNodes:
        """Check a table; ValueError names the first invalid value."""
        where = f"node type {node_type!r}"
        instance_of(where, table, NodeTable, "give a khop.NodeTable")
        for what, given in (("columns", table.columns), ("splits", table.splits)):
            mapping_of(f"{where}: {what}", given, "names to tensors or arrays")
        mapping_of(f"{where}: num_classes", table.num_classes, "names of label columns to whole numbers")
        layout.check_names(table.columns, f"{where}: column")
        layout.check_names(table.splits, f"{where}: split")
        stored = {name: _stored(where, name, column) for name, column in table.columns.items()}
        columns = _given_columns(where, stored)
        _check_unknown(where, table.unknown, columns)
        ids = None if table.ids is None else given_ids(table.ids, where)
        count = _node_count(where, table.count, columns, ids)
        _check_rows(columns, count, f"{where} has {count:,} nodes")
        classes: dict[str, int] = {}
        for name, num_classes in table.num_classes.items():
            if name not in columns:
                raise ValueError(
                    f"{where}: num_classes of {name!r}: no such column; there are {list(columns)}"
                )
            classes[name] = whole_number(f"{where}: num_classes of {name!r}", num_classes, 1)
            columns[name] = columns[name].as_classes()
            columns[name].check_labels(classes[name])
        for name, column in columns.items():
            column.check_finite("NaN" if name in table.unknown else "finite")
        if ORIGINAL_ID in columns:
            columns[ORIGINAL_ID].check_original_ids()
        splits = {
            name: _split_ids(array, count, f"{where}: split {name!r}") for name, array in table.splits.items()
        }
        check_splits(splits, count, f"{node_type!r} nodes")
        scales = _scales(stored)
        sparse = {name: column.width for name, column in stored.items() if isinstance(column, SparseColumn)}
        if ids is not None:
            check_distinct(ids, count, where)
        kind = "" if ids is None else kind_of(ids)
        entry = NodeEntry(node_type, count, tuple(columns), tuple(splits), classes, scales, kind, sparse)
        return cls(entry, columns, splits, ids)

    @property
    def num_bytes(self) -> int:
        """Bytes to write, without headers."""
        columns = sum(column.values.nbytes for column in self.columns.values())
        index = 0 if self.ids is None else index_bytes(self.ids)
        return columns + index + sum(len(ids) * _INT64_BYTES for ids in self.splits.values())


@dataclass(frozen=True)
class GivenEdges:
    """A checked EdgeTable."""

    entry: EdgeEntry
    sources: Given
    destinations: Given
    columns: Mapping[str, Given]
    edge_id: Tensor | None = None  # numbers of the edges to store, int32 or int64; None: positions

    @classmethod
    def of(cls, edge_type: EdgeType, table: EdgeTable, counts: Mapping[NodeType, int]) -> GivenEdges:
        """Check a table; ValueError names the first invalid value."""
        where = f"edge type {edge_type}"
        instance_of(where, table, EdgeTable, "give a khop.EdgeTable")
        mapping_of(f"{where}: columns", table.columns, "names to tensors or arrays")
        layout.check_names(table.columns, f"{where}: column")
        _refuse_sparse(where, table.columns)
        ends: list[Given] = []
        for side, node_type, array in (
            ("sources", edge_type[0], table.sources),
            ("destinations", edge_type[2], table.destinations),
        ):
            if node_type not in counts:
                raise ValueError(f"{where}: no node type {node_type!r}; there are {list(counts)}")
            ids = Given.of(array, f"{where}: {side}")
            ids.check_ids(counts[node_type], f"{node_type!r} nodes", "drop the edge or raise the count")
            ends.append(ids)
        sources, destinations = ends
        if len(sources) != len(destinations):
            raise ValueError(
                f"{where}: {len(sources):,} sources, {len(destinations):,} destinations: an edge has both"
            )
        columns = _given_columns(where, table.columns)
        _check_rows(columns, len(sources), f"{where} has {len(sources):,} edges")
        for column in columns.values():
            column.check_finite()
        entry = EdgeEntry(edge_type, len(sources), tuple(columns), scales=_scales(table.columns))
        return cls(entry, sources, destinations, columns)

    def ends(self) -> tuple[Tensor, Tensor]:
        """Return sources and destinations, both int32 or both int64."""
        sources, destinations = self.sources.tensor(), self.destinations.tensor()
        if sources.dtype == destinations.dtype and sources.dtype in INDEX_DTYPES:
            return sources, destinations
        return sources.long(), destinations.long()

    def num_bytes(self, counts: Mapping[NodeType, int]) -> int:
        """Return the bytes to write, without headers; an upper bound, as `edge_id` may be unnecessary."""
        count = self.entry.count
        ids = count * np.dtype(id_dtype(counts[self.entry.type[0]])).itemsize
        edge_id = count * np.dtype(id_dtype(count)).itemsize if self.columns else 0
        columns = sum(column.values.nbytes for column in self.columns.values())
        return (counts[self.entry.type[2]] + 1) * _INT64_BYTES + ids + edge_id + columns


@dataclass(frozen=True)
class EdgeStream:
    """Edges in chunks, with the first chunk already read."""

    first: GivenEdges
    tables: Iterator[EdgeTable]  # including the first
    reverse: EdgeType | None

    @classmethod
    def of(cls, edge_type: EdgeType, edges: EdgeChunks, counts: Mapping[NodeType, int]) -> EdgeStream:
        """Read and check the first chunk."""
        tables = iter(edges.chunks)
        first = next(tables, None)
        if first is None:
            raise ValueError(f"edge type {edge_type}: there are no chunks; give at least one khop.EdgeTable")
        given = GivenEdges.of(edge_type, first, counts)
        return cls(given, chain([first], tables), edge_type_of(edges.reverse) if edges.reverse else None)

    def checked(self, counts: Mapping[NodeType, int]) -> Iterator[GivenEdges]:
        """Yield all chunks; ValueError for a chunk whose columns differ from the first's."""
        for number, table in enumerate(self.tables):
            given = GivenEdges.of(self.first.entry.type, table, counts)
            specs = [
                {n: (c.dtype, c.values.shape[1:]) for n, c in one.columns.items()}
                for one in (self.first, given)
            ]
            if specs[0] != specs[1]:
                raise ValueError(
                    f"edge type {given.entry.type}: chunk {number} has columns {specs[1]}, but the first has "
                    f"{specs[0]}; give all chunks the same"
                )
            yield given


def _node_count(where: str, count: int | None, columns: Mapping[str, Given], ids: Keys | None) -> int:
    if count is None and ids is not None:
        return len(ids)
    if count is None and not columns:
        raise ValueError(f"{where}: has neither a count nor a column; give NodeTable(count=...)")
    if count is None:
        return len(next(iter(columns.values())))
    return whole_number(f"{where}: count", count, 0)


def _stored(where: str, name: str, column: NodeColumn | AsFloat16) -> _Stored:
    """Return a column in its stored form: a sparse matrix as rows of indices and values."""
    if is_sparse(column):
        return sparse_column(column, f"{where}: column {name!r}")
    if isinstance(column, Tensor) and column.layout != torch.strided:
        layout = str(column.layout).removeprefix("torch.")
        raise ValueError(
            f"{where}: column {name!r} is a tensor of layout {layout}: give tensor.to_sparse_csr(), or a "
            "dense one"
        )
    return cast("_Stored", column)


def _refuse_sparse(where: str, columns: Mapping[str, object]) -> None:
    for name, column in columns.items():
        if isinstance(column, SparseColumn) or is_sparse(column):
            raise ValueError(
                f"{where}: column {name!r} is sparse: columns of nodes may be; give a dense array for edges"
            )


_Stored = Array | Quantized | SparseColumn | AsFloat16


def _given_columns(where: str, columns: Mapping[str, _Stored]) -> dict[str, Given]:
    given = {}
    for name, column in columns.items():
        array = column.values if isinstance(column, Quantized | SparseColumn | AsFloat16) else column
        given[name] = Given.of(array, f"{where}: column {name!r}")
        if isinstance(column, AsFloat16):
            given[name] = given[name].as_float16()
    return given


def _scales(columns: Mapping[str, _Stored]) -> dict[str, tuple[float, ...]]:
    quantized = {name: column for name, column in columns.items() if isinstance(column, Quantized)}
    return {name: tuple(column.scales.flatten().tolist()) for name, column in quantized.items()}


def _check_rows(columns: Mapping[str, Given], count: int, owner: str) -> None:
    for column in columns.values():
        column.check_rows(count, owner)


def _check_unknown(where: str, unknown: Collection[str], columns: Mapping[str, Given]) -> None:
    if isinstance(unknown, str):
        raise ValueError(f"{where}: unknown is {unknown!r}: give a collection of names, as ({unknown!r},)")
    for name in unknown:
        if name not in columns:
            raise ValueError(f"{where}: unknown names {name!r}: no such column; there are {list(columns)}")


def _split_ids(array: Numbers, count: int, name: str) -> Given:
    if not isinstance(array, Tensor | np.ndarray):
        array = tensor_of(name, array)
    if str(array.dtype).removeprefix("torch.") in ("uint16", "uint32", "uint64"):  # not stored as columns
        array = tensor_of(name, array).long()
    given = Given.of(array, name)
    if given.dtype != "bool":
        refuse_numeric_mask(name, given.values, count)
        return given
    if given.values.shape != (count,):
        raise ValueError(
            f"{name} is a mask of shape {given.values.shape}, but there are {count:,} nodes; give one each"
        )
    return Given(np.flatnonzero(given.values), "int64", name)


def id_dtype(count: int) -> str:
    """Return the dtype of ids below `count`."""
    return str(index_dtype(count)).removeprefix("torch.")
