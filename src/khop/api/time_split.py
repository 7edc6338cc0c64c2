"""Graphs and links before the cut-offs of a split by time, as `khop import` records them in a folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from khop.api.open_graph import Graph
from khop.api.split_links import AnyLinks, LinkSplit, beside, links_at, with_edges_of
from khop.distributed.link_split import RankEdges, rank_links
from khop.draw import DrawKey, Purpose
from khop.graph.csc_graph import drawing_from
from khop.graph.folder import Folder
from khop.graph.import_record import import_record
from khop.graph.rule_arrays import edge_times
from khop.kernels.edge_times import EdgeTimes
from khop.sampling.link_split import (
    DistributedEdges,
    LinkColumns,
    WholeEdges,
    as_first_numbered,
)
from khop.schema import EdgeType, NodeType

TIME = "time"  # the column of times
SPLIT = "split"  # the edge column of parts
PARTS = ("train", "val", "test")
_AT_ONCE = 1 << 22  # edges


@dataclass(frozen=True)
class TimeCutOffs:
    """The first times of validation and of test, in the unit of the graph."""

    val: int
    test: int


def time_cut_offs(graph: Graph) -> TimeCutOffs | None:
    """Return the cut-offs that the folder of a graph records; None if it records none."""
    folder = graph.folder or graph.origin
    return None if folder is None else recorded_cut_offs(folder)


def recorded_cut_offs(folder: Folder) -> TimeCutOffs | None:
    """Return the cut-offs that a graph folder, whole or partitioned, records; None if it records none."""
    found = import_record(folder).get("time_split")
    return None if found is None else TimeCutOffs(int(found["val"]), int(found["test"]))


def edges_of_split(graph: Graph, split: str) -> Graph:
    """Return the graph with the edges that carry messages to the nodes of a split.

    With the cut-offs of a split by time, training has the edges before `val`, validation those before `test`,
    and test and splits of other names all. A graph without cut-offs is returned as it is.
    """
    cut_offs = time_cut_offs(graph)
    limits = {} if cut_offs is None else {"train": cut_offs.val, "val": cut_offs.test}
    return edges_before(graph, limits[split]) if split in limits else graph


def edges_before(graph: Graph, limit: int) -> Graph:
    """Return the graph with the edges before a time, and with all nodes, columns and splits.

    The time of an edge is its own, its source's, or the later of both. Edges without a time are kept. Takes
    8 bytes of memory for each kept edge of a type with times, and its indices. Negatives are drawn from the
    nodes that exist before the time: those with an own time before it, or, in types without times, those with
    an edge before it.
    """
    kept = {t: _positions(times, below=limit) for t, times in _timed(graph)}
    if not kept:
        return graph
    exist = _existing(graph, limit)
    if graph.rank_edges is not None:
        edges = graph.rank_edges.keeping(kept).drawing_from(exist)
        return beside(graph, edges, graph.features, edges)
    topology = drawing_from(graph.in_one_piece("edges_before"), exist)
    return with_edges_of(graph, topology, kept)


def split_links_by_time(
    graph: Graph,
    edge_type: EdgeType,
    cut_offs: TimeCutOffs,
    *,
    negatives: int = 1,
    time: str | None = None,
    seed: int = 0,
) -> LinkSplit:
    """Split the edges of a type by their times: training < val <= validation < test <= test.

    Training and validation pass messages over the edges of all types before `val`, test over those before
    `test`; reverses have the times of their edges. Negatives are nodes that exist before these times, as in
    `edges_before`, and no edges of the whole graph. The other arguments are those of `khop.split_links`.
    """
    parts = _parts_by_time(graph, edge_type, cut_offs)
    train, test = edges_before(graph, cut_offs.val), edges_before(graph, cut_offs.test)
    exist = [_existing(graph, cut_offs.val), _existing(graph, cut_offs.test)]
    columns = LinkColumns(negatives, None, time)
    candidates = {"train": exist[0], "val": exist[0], "test": exist[1]}
    links = _links(graph, edge_type, parts, candidates, columns, seed)
    return LinkSplit(train, train, test, *links)


def link_counts(graph: Graph, edge_type: EdgeType, by: Literal["time", "column"]) -> tuple[int, ...]:
    """Return how many links of a type are of training, of validation and of test."""
    cut_offs = time_cut_offs(graph)
    if by == "time" and cut_offs is not None:
        parts = _parts_by_time(graph, edge_type, cut_offs)
    else:
        parts = [of.long() for of in _column(graph, edge_type, SPLIT)]
    counts = torch.tensor([sum(int((of == number).sum()) for of in parts) for number in range(len(PARTS))])
    return tuple(_summed(graph, counts).tolist())


def _parts_by_time(graph: Graph, edge_type: EdgeType, cut_offs: TimeCutOffs) -> list[Tensor]:
    times = _times(graph, edge_type)
    if times is None:
        raise ValueError(f"links of {edge_type}: have no column {TIME!r} to split by; add times")
    return [(of >= cut_offs.val).long() + (of >= cut_offs.test).long() for of in times]


def split_links_by_column(
    graph: Graph,
    edge_type: EdgeType,
    *,
    negatives: int = 1,
    time: str | None = None,
    seed: int = 0,
) -> LinkSplit:
    """Split the edges of a type by their column `split`: 0 training, 1 validation, 2 test, -1 none.

    Training and validation pass messages over training edges, test over those of training and validation.
    The same holds for other edge types with such a column; edge types without one are kept.
    """
    types = [t for t in graph.schema.edge_types if SPLIT in graph.schema.columns.get(t, {})]
    if edge_type not in types:
        raise ValueError(
            f"links of {edge_type}: have no column {SPLIT!r} to split by; give the edge type a split in "
            "the spec of its import"
        )
    parts = {t: [of.long() for of in _column(graph, t, SPLIT)] for t in types}

    def up_to(last: int) -> Graph:
        kept = {t: _positions(of, above=-1, below=last + 1) for t, of in parts.items()}
        if graph.rank_edges is not None:
            edges = graph.rank_edges.keeping(kept)
            return beside(graph, edges, graph.features, edges)
        return with_edges_of(graph, graph.in_one_piece("split_links"), kept)

    train, test = up_to(0), up_to(1)
    links = _links(graph, edge_type, parts[edge_type], {}, LinkColumns(negatives, None, time), seed)
    return LinkSplit(train, train, test, *links)


def _links(
    graph: Graph,
    edge_type: EdgeType,
    parts: Sequence[Tensor],
    candidates: Mapping[str, Mapping[NodeType, Tensor]],
    columns: LinkColumns,
    seed: int,
) -> list[AnyLinks]:
    """Return the links of each part; `parts` are those of the edges, `candidates` the nodes to draw."""
    key, links = DrawKey.of(seed, Purpose.SPLIT), list[AnyLinks]()
    positions = {n: _positions(parts, above=at - 1, below=at + 1) for at, n in enumerate(PARTS)}
    counts = torch.tensor([sum(at.numel() for at in chosen) for chosen in positions.values()])
    for name, count in zip(PARTS, _summed(graph, counts).tolist(), strict=True):
        if not count:
            raise ValueError(f"links of {edge_type}: none is of {name}; change the split, or import more")
    for number, (name, chosen) in enumerate(positions.items()):
        of_part = columns if number else columns.of_training
        drawable = candidates.get(name, {})
        if graph.rank_edges is not None:
            edges = graph.rank_edges.drawing_from(drawable)
            links.append(rank_links(edges, {edge_type: chosen}, of_part, key.plus(number)))
        else:
            topology = drawing_from(graph.in_one_piece("split_links"), drawable)
            asked = {edge_type: as_first_numbered(topology, edge_type, chosen[0])}
            links.append(links_at(graph, topology, asked, of_part, key.plus(number)))
    return links


def _positions(of_ranges: Sequence[Tensor], *, below: int, above: int | None = None) -> tuple[Tensor, ...]:
    """Return for each range of rows the positions of values within limits, exclusive."""
    return tuple(
        torch.nonzero(of < below if above is None else (of > above) & (of < below)).squeeze(1)
        for of in of_ranges
    )


def _edges(graph: Graph) -> DistributedEdges:
    """Return the edges of the graph that are here: all, or those of the partitions of this rank."""
    if graph.rank_edges is not None:
        return RankEdges(graph.rank_edges)
    return WholeEdges(graph.in_one_piece("the split by time"))


def _summed(graph: Graph, counts: Tensor) -> Tensor:
    """Return the sum of the counts of all ranks that hold edges."""
    return counts if graph.rank_edges is None else RankEdges(graph.rank_edges).summed(counts)


def _column(graph: Graph, edge_type: EdgeType, name: str) -> list[Tensor]:
    """Return a column of the edges that are here, by range of rows."""
    if graph.rank_edges is None:
        return [graph.columns[edge_type][name]]
    held = graph.rank_edges.held
    return held.column(edge_type, name, [torch.arange(csc.num_edges) for csc, _ in held.rows(edge_type)])


def _times(graph: Graph, edge_type: EdgeType) -> list[Tensor] | None:
    """Return the times of the edges that are here, by range of rows; None if the type has none."""
    if graph.rank_edges is None:
        times = edge_times(graph.local_csc(edge_type), edge_type, graph.columns, TIME)
        return None if times is None else [times]
    held, columns = graph.rank_edges.held, graph.schema.columns
    sources = _node_times(graph, edge_type[0])
    ranges = held.rows(edge_type)
    own = _column(graph, edge_type, TIME) if TIME in columns.get(edge_type, {}) else [None] * len(ranges)
    if sources is None and None in own:
        return None
    return [EdgeTimes(of, sources).of(csc) for of, (csc, _) in zip(own, ranges, strict=True)]


def _node_times(graph: Graph, node_type: NodeType) -> Tensor | None:
    if TIME not in graph.schema.columns.get(node_type, {}):
        return None
    if graph.rank_edges is not None:
        return graph.rank_edges.held.folder.columns()[node_type][TIME]
    return graph.columns[node_type][TIME]


def _timed(graph: Graph) -> Iterator[tuple[EdgeType, list[Tensor]]]:
    """Yield the edge types with times, and the times."""
    for edge_type in graph.schema.edge_types:
        times = _times(graph, edge_type)
        if times is not None:
            yield edge_type, times


def _existing(graph: Graph, limit: int) -> dict[NodeType, Tensor]:
    """Return the nodes that exist before a time, bool (nodes), for the types where times say so."""
    edges, touched = _edges(graph), dict[NodeType, Tensor]()
    for edge_type, times in _timed(graph):
        for node_type in edge_type[::2]:
            touched.setdefault(node_type, torch.zeros(graph.num_nodes(node_type), dtype=torch.int64))
        for edge_range, at in zip(edges.edge_ranges(edge_type), _positions(times, below=limit), strict=True):
            for some in at.split(_AT_ONCE):
                for node_type, ends in zip(edge_type[::2], edge_range.ends(some), strict=True):
                    touched[node_type][ends] = 1
    found = {t: _summed(graph, marks) > 0 for t, marks in touched.items()}
    own = {t: _node_times(graph, t) for t in graph.schema.node_types}
    return found | {t: times < limit for t, times in own.items() if times is not None}
