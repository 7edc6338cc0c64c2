"""Graphs and links before the cut-offs of a split by time, as `khop import` records them in a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from khop.api.open_graph import Graph
from khop.api.split_links import (
    AnyLinks,
    LinkSplit,
    beside,
    edge_types_of,
    links_at,
    split_on_servers,
    with_edges_of,
)
from khop.arguments import seed_number
from khop.distributed.link_split import rank_edges, rank_links, summed_over_ranks
from khop.draw import DrawKey, Purpose
from khop.graph.csc_graph import drawing_from
from khop.graph.import_record import TimeCutOffs, recorded_cut_offs
from khop.sampling.link_split import Chosen, EdgeSplit, LinkColumns, Part, as_first_numbered
from khop.sampling.time_split import (
    PARTS,
    ColumnEdges,
    WholeColumnEdges,
    check_parts,
    nodes_before,
    nodes_with_edges_before,
    parts_by_column,
    parts_by_time,
    positions_before,
    split_by_column,
    split_by_time,
)
from khop.schema import EdgeType, EdgeTypeName, NodeType
from khop.servers.graph import view_before
from khop.servers.split_arguments import ByColumn, SplitArguments


def time_cut_offs(graph: Graph) -> TimeCutOffs | None:
    """Return the cut-offs that the folder or the servers of a graph record; None if they record none."""
    if graph.servers is not None:
        return graph.servers.cut_offs
    folder = graph.folder or graph.origin
    return None if folder is None else recorded_cut_offs(folder)


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
    an edge before it. Servers leave out the edges of a graph that they hold.
    """
    if graph.servers is not None:
        topology, features = view_before(graph.servers, graph.schema, limit)
        return replace(graph, topology=topology, features=features)
    edges = _edges(graph)
    kept = positions_before(edges, limit)
    return _with_edges(graph, kept, _existing(graph, edges, limit)) if kept else graph


def split_links_by_time(
    graph: Graph,
    edge_type: EdgeTypeName | Sequence[EdgeTypeName],
    cut_offs: TimeCutOffs,
    *,
    negatives: int = 1,
    label: str | None = None,
    time: str | None = None,
    relation: str | None = None,
    seed: int = 0,
) -> LinkSplit:
    """Split the edges of one or several types by their times: training < val <= validation < test <= test.

    Training and validation pass messages over the edges of all types before `val`, test over those before
    `test`; reverses have the times of their edges. Negatives are nodes that exist before these times, as in
    `edges_before`, and no edges of the whole graph. The other arguments are those of `khop.split_links`.
    """
    edge_types, columns = edge_types_of(edge_type), LinkColumns(negatives, label, time, relation)
    if graph.servers is not None:
        return split_on_servers(graph, SplitArguments(edge_types, cut_offs, columns, seed_number(seed)))
    edges = _edges(graph)
    return _split(graph, edges, split_by_time(edges, edge_types, cut_offs), columns, seed)


def split_links_by_column(
    graph: Graph,
    edge_type: EdgeTypeName | Sequence[EdgeTypeName],
    *,
    negatives: int = 1,
    label: str | None = None,
    time: str | None = None,
    relation: str | None = None,
    seed: int = 0,
) -> LinkSplit:
    """Split the edges of one or several types by their column `split`: 0 train, 1 val, 2 test, -1 none.

    Training and validation pass messages over training edges, test over those of training and validation.
    The same holds for other edge types with such a column; edge types without one are kept. The other
    arguments are those of `khop.split_links`.
    """
    edge_types, columns = edge_types_of(edge_type), LinkColumns(negatives, label, time, relation)
    if graph.servers is not None:
        return split_on_servers(graph, SplitArguments(edge_types, ByColumn(), columns, seed_number(seed)))
    edges = _edges(graph)
    return _split(graph, edges, split_by_column(edges, edge_types), columns, seed)


def link_counts(graph: Graph, edge_type: EdgeType, by: Literal["time", "column"]) -> tuple[int, ...]:
    """Return how many links of a type are of training, of validation and of test."""
    cut_offs, edges = time_cut_offs(graph), _edges(graph)
    if by == "time" and cut_offs is not None:
        parts = parts_by_time(edges, edge_type, cut_offs)
    else:
        parts = parts_by_column(edges, edge_type)
    counts = torch.tensor([sum(int((of == number).sum()) for of in parts) for number in range(len(PARTS))])
    return tuple(_summed(graph, counts).tolist())


def _split(graph: Graph, edges: ColumnEdges, split: EdgeSplit, columns: LinkColumns, seed: int) -> LinkSplit:
    """Return the graphs and the links of a split of the edges that are here."""
    parts = (split.train, split.val, split.test)
    for edge_type in split.train.links:
        counts = torch.tensor([sum(at.numel() for at in part.links[edge_type]) for part in parts])
        check_parts(edge_type, dict(zip(PARTS, _summed(graph, counts).tolist(), strict=True)))
    exist: dict[int | None, dict[NodeType, Tensor]] = {None: {}}
    for part in (split.train, split.test):
        if part.limit is not None and part.limit not in exist:
            exist[part.limit] = _existing(graph, edges, part.limit)
    train, test = (_with_edges(graph, of.kept, exist[of.limit]) for of in (split.train, split.test))
    key = DrawKey.of(seed, Purpose.SPLIT)
    links = [
        _links(graph, part, exist[part.limit], columns if number else columns.of_training, key.plus(number))
        for number, part in enumerate(parts)
    ]
    return LinkSplit(train, train, test, *links)


def _links(
    graph: Graph, part: Part, exist: Mapping[NodeType, Tensor], columns: LinkColumns, key: DrawKey
) -> AnyLinks:
    """Return the links of a part, with negatives among the nodes that `exist`."""
    if graph.rank_edges is not None:
        return rank_links(graph.rank_edges.drawing_from(exist), part.links, columns, key)
    topology = drawing_from(graph.in_one_piece("split_links"), exist)
    asked = {t: as_first_numbered(topology, t, at) for t, (at,) in part.links.items()}
    return links_at(graph, topology, asked, columns, key)


def _with_edges(graph: Graph, kept: Chosen, exist: Mapping[NodeType, Tensor]) -> Graph:
    """Return the graph with the kept edges, and negatives among the nodes that `exist`."""
    if graph.rank_edges is not None:
        edges = graph.rank_edges.keeping(kept).drawing_from(exist)
        return beside(graph, edges, graph.features, edges)
    return with_edges_of(graph, drawing_from(graph.in_one_piece("edges before a time"), exist), kept)


def _edges(graph: Graph) -> ColumnEdges:
    """Return the edges of the graph that are here: all, or those of the partitions of this rank."""
    if graph.rank_edges is not None:
        return rank_edges(graph.rank_edges)
    return WholeColumnEdges(graph.in_one_piece("the split by time"), graph.columns)


def _summed(graph: Graph, counts: Tensor) -> Tensor:
    """Return the sum of the counts of all ranks that hold edges."""
    return counts if graph.rank_edges is None else summed_over_ranks(graph.rank_edges, counts)


def _existing(graph: Graph, edges: ColumnEdges, limit: int) -> dict[NodeType, Tensor]:
    """Return the nodes that exist before a time, bool (nodes), for the types where times say so."""
    touched = nodes_with_edges_before(edges, limit)
    if graph.rank_edges is not None:
        touched = {t: _summed(graph, marks.long()) > 0 for t, marks in touched.items()}
    return nodes_before(edges, limit, touched)
