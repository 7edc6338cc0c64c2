"""Splits of links by time or by a column, and the edges and nodes before a time.

All functions work on the edges of one process. Where several processes hold edges, each gets its own share.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from khop.graph.csc_graph import CscGraph
from khop.graph.import_record import TimeCutOffs
from khop.kernels.edge_times import EdgeTimes
from khop.sampling.link_split import Chosen, EdgeRange, EdgeSplit, Part
from khop.schema import EdgeType, NodeType, Schema

TIME = "time"  # the column of times
SPLIT = "split"  # the edge column of parts
PARTS = ("train", "val", "test")
_AT_ONCE = 1 << 22  # edges


class ColumnEdges(Protocol):
    """Edges with their columns: all edges of a graph, or the edges that a process holds."""

    @property
    def schema(self) -> Schema:
        """Node types and edge types of the graph."""
        ...

    def edge_ranges(self, edge_type: EdgeType) -> Sequence[EdgeRange]:
        """Return the ranges of rows in this process."""
        ...

    def num_nodes(self, node_type: NodeType) -> int:
        """Return the number of nodes of a type in the whole graph."""
        ...

    def edge_column(self, edge_type: EdgeType, name: str) -> Sequence[Tensor] | None:
        """Return a column of the edges in this process, by range of rows; None if the type lacks it."""
        ...

    def node_column(self, node_type: NodeType, name: str) -> Tensor | None:
        """Return a column of all nodes of a type; None if the type lacks it."""
        ...


@dataclass(frozen=True, eq=False)
class WholeColumnEdges:
    """All edges of a graph in this process, with columns by type (a ColumnEdges)."""

    graph: CscGraph
    columns: Mapping[NodeType | EdgeType, Mapping[str, Tensor]]

    @property
    def schema(self) -> Schema:
        """Node types and edge types of the graph."""
        return self.graph.schema

    def edge_ranges(self, edge_type: EdgeType) -> Sequence[EdgeRange]:
        """Return all rows as one range."""
        return (EdgeRange(self.graph.csc(edge_type)),)

    def num_nodes(self, node_type: NodeType) -> int:
        """Return the number of nodes of a type."""
        return self.graph.num_nodes(node_type)

    def edge_column(self, edge_type: EdgeType, name: str) -> Sequence[Tensor] | None:
        """Return a column of all edges as one range; None if the type lacks it."""
        columns = self.columns.get(edge_type, {})
        return (columns[name],) if name in columns else None

    def node_column(self, node_type: NodeType, name: str) -> Tensor | None:
        """Return a column of all nodes of a type; None if the type lacks it."""
        return self.columns.get(node_type, {}).get(name)


def split_by_time(edges: ColumnEdges, edge_types: Sequence[EdgeType], cut_offs: TimeCutOffs) -> EdgeSplit:
    """Split the edges of some types by their times: training < val <= validation < test <= test.

    Training and validation pass messages over the edges of all types before `val`, test over those before
    `test`. Negatives are nodes that exist before these times.
    """
    parts = {t: parts_by_time(edges, t, cut_offs) for t in edge_types}
    limits = (cut_offs.val, cut_offs.val, cut_offs.test)
    kept = {limit: positions_before(edges, limit) for limit in dict.fromkeys(limits)}
    train, val, test = (
        Part(kept[limit], _of_part(parts, number), limit) for number, limit in enumerate(limits)
    )
    return EdgeSplit(train, val, test)


def split_by_column(edges: ColumnEdges, edge_types: Sequence[EdgeType]) -> EdgeSplit:
    """Split the edges of some types by their column `split`: 0 training, 1 validation, 2 test, -1 none.

    Training and validation pass messages over training edges, test over those of training and validation.
    The same holds for other edge types with such a column; edge types without one are kept.
    """
    has_parts = [t for t in edges.schema.edge_types if edges.edge_column(t, SPLIT) is not None]
    parts = {t: parts_by_column(edges, t) for t in dict.fromkeys([*edge_types, *has_parts])}
    kept = [{t: _positions(of, above=-1, below=end) for t, of in parts.items()} for end in (1, 2)]
    asked = {t: parts[t] for t in edge_types}
    train, val, test = (
        Part(of_part, _of_part(asked, number)) for number, of_part in enumerate((kept[0], kept[0], kept[1]))
    )
    return EdgeSplit(train, val, test)


def parts_by_time(edges: ColumnEdges, edge_type: EdgeType, cut_offs: TimeCutOffs) -> list[Tensor]:
    """Return the part of each edge of a type by its time, int64, by range of rows: the place in `PARTS`."""
    times = edge_times(edges, edge_type)
    if times is None:
        raise ValueError(f"links of {edge_type}: have no column {TIME!r} to split by; add times")
    return [(of >= cut_offs.val).long() + (of >= cut_offs.test).long() for of in times]


def parts_by_column(edges: ColumnEdges, edge_type: EdgeType) -> list[Tensor]:
    """Return the part of each edge of a type by its column `split`, int64, by range of rows; -1: none."""
    ranges = edges.edge_column(edge_type, SPLIT)
    if ranges is None:
        raise ValueError(
            f"links of {edge_type}: have no column {SPLIT!r} to split by; give the edge type a split in "
            "the spec of its import"
        )
    return [of.long() for of in ranges]


def check_parts(edge_type: EdgeType, counts: Mapping[str, int]) -> None:
    """Raise ValueError for a part of a split without links; `counts` are those of all processes."""
    for name, count in counts.items():
        if not count:
            raise ValueError(f"links of {edge_type}: none is of {name}; change the split, or import more")


def positions_before(edges: ColumnEdges, limit: int) -> Chosen:
    """Return the positions of the edges before a time, for each edge type with times.

    The time of an edge is its own, its source's, or the later of both.
    """
    return {t: _positions(times, below=limit) for t, times in _timed(edges)}


def nodes_with_edges_before(edges: ColumnEdges, limit: int) -> dict[NodeType, Tensor]:
    """Mark the ends of edges before a time, bool (nodes), for the node types at ends of types with times."""
    touched: dict[NodeType, Tensor] = {}
    for edge_type, times in _timed(edges):
        for node_type in edge_type[::2]:
            touched.setdefault(node_type, torch.zeros(edges.num_nodes(node_type), dtype=torch.bool))
        for edge_range, at in zip(edges.edge_ranges(edge_type), _positions(times, below=limit), strict=True):
            for some in at.split(_AT_ONCE):
                for node_type, ends in zip(edge_type[::2], edge_range.ends(some), strict=True):
                    touched[node_type][ends] = True
    return touched


def nodes_before(
    edges: ColumnEdges, limit: int, touched: Mapping[NodeType, Tensor]
) -> dict[NodeType, Tensor]:
    """Mark the nodes that exist before a time, bool (nodes), for the types where times say so.

    A node with an own time exists from then on, other nodes from their first edge on: `touched` marks the
    ends of the edges of all processes, see `nodes_with_edges_before`.
    """
    own = {t: edges.node_column(t, TIME) for t in edges.schema.node_types}
    return {**touched, **{t: times < limit for t, times in own.items() if times is not None}}


def edge_times(edges: ColumnEdges, edge_type: EdgeType) -> list[Tensor] | None:
    """Return the times of the edges of a type, int64, by range of rows; None if the type has none."""
    ranges, sources = edges.edge_ranges(edge_type), edges.node_column(edge_type[0], TIME)
    own = edges.edge_column(edge_type, TIME)
    if own is None and sources is None:
        return None
    of_ranges = [None] * len(ranges) if own is None else own
    return [EdgeTimes(of, sources).of(each.csc) for of, each in zip(of_ranges, ranges, strict=True)]


def _of_part(parts: Mapping[EdgeType, Sequence[Tensor]], number: int) -> Chosen:
    """Return the positions of the edges of each type in the part of this number."""
    return {t: _positions(of_type, above=number - 1, below=number + 1) for t, of_type in parts.items()}


def _timed(edges: ColumnEdges) -> Iterator[tuple[EdgeType, list[Tensor]]]:
    """Yield the edge types with times, and the times."""
    for edge_type in edges.schema.edge_types:
        times = edge_times(edges, edge_type)
        if times is not None:
            yield edge_type, times


def _positions(of_ranges: Sequence[Tensor], *, below: int, above: int | None = None) -> tuple[Tensor, ...]:
    """Return for each range of rows the positions of values within limits, exclusive."""
    return tuple(
        torch.nonzero(of < below if above is None else (of > above) & (of < below)).squeeze(1)
        for of in of_ranges
    )
