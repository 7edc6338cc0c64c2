"""Edge types added to a graph in memory, and the probability that a batch visits a node.

Added edges are given by the user, or connect nodes that occur together, such as items bought by the same
users. Caches of remote rows use the probabilities.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from khop.arguments import graph_of, whole_number
from khop.graph.folder import GraphFolder
from khop.graph.inputs import Array, Given, Quantized, checked_reverses
from khop.graph.store import CscGraph, GraphStore, csc_graph_from_edges
from khop.graph.tables import EdgeTable
from khop.kernels.csc import Csc, build_csc, edge_spans, index_dtype
from khop.kernels.edge_arrays import cooccurrences
from khop.schema import EdgeType, EdgeTypeName, NodeType, Schema, edge_type_of


def with_edges(graph: CscGraph, edges: Mapping[EdgeType, EdgeTable], threads: int = 1) -> CscGraph:
    """Return the graph, in memory, with additional edge types. Existing arrays are shared, not copied.

    ValueError if the edges of a `reverse_of` are not the same edges in the opposite direction.
    """
    for edge_type in edges:
        if edge_type in graph.edges:
            raise ValueError(
                f"edge type {edge_type}: the graph already has it; give the new one another name"
            )
    added = csc_graph_from_edges(
        graph.counts,
        {
            t: (torch.as_tensor(table.sources), torch.as_tensor(table.destinations))
            for t, table in edges.items()
        },
        threads,
        columns={
            t: {name: _column_tensor(t, name, column) for name, column in table.columns.items()}
            for t, table in edges.items()
        },
    )
    reverses = {t: edge_type_of(table.reverse_of) for t, table in edges.items() if table.reverse_of}
    _check_reverses(reverses, {**graph.edges, **added.edges})
    schema = Schema(
        graph.schema.node_types,
        (*graph.schema.edge_types, *edges),
        {**graph.schema.reverse_of, **reverses},
        {**graph.schema.columns, **added.schema.columns},
    )
    return CscGraph(
        schema,
        graph.counts,
        {**graph.edges, **added.edges},
        graph.originals,
        {**graph.columns, **added.columns},
        bounds=graph.bounds,
    )


def _check_reverses(claimed: Mapping[EdgeType, EdgeType], edges: Mapping[EdgeType, Csc]) -> None:
    """Raise ValueError for a wrong reverse, which would remove links from messages in one direction only."""
    for edge_type, reverse in claimed.items():
        if reverse not in edges:
            raise ValueError(
                f"edge type {edge_type}: reverse_of {reverse}: no such edge type; there are {list(edges)}"
            )
    checked_reverses(claimed, {t: _given_ends(edges[t]) for t in {*claimed, *claimed.values()}})


def _given_ends(csc: Csc) -> tuple[Given, Given]:
    return Given.of(csc.indices, "sources"), Given.of(csc.destinations(), "destinations")


def _column_tensor(edge_type: EdgeType, name: str, column: Array | Quantized) -> Tensor:
    """Return a column of an EdgeTable; ValueError if a graph in memory cannot hold it."""
    where = f"edge type {edge_type}: column {name!r}"
    if isinstance(column, Quantized):
        raise ValueError(f"{where} is quantized: give it as numbers, or write the graph by khop.write_graph")
    Given.of(column, where)  # raises ValueError with the reason
    return torch.as_tensor(column)


def cooccurrence(
    graph: GraphStore,
    edge_type: EdgeTypeName,
    *,
    through: NodeType | None = None,
    min_count: int = 3,
    threads: int = 1,
) -> EdgeTable:
    """Connect two nodes of a type if at least `min_count` two-step paths over an edge type join them.

    For ("user", "buys", "item") through users, a path leads from an item to a user who bought it, and on
    to another item of that user. Parallel edges are separate paths: if a user bought one item once and
    another three times, three paths join the two items. If no edge is repeated, the number of paths is
    the number of users who bought both items.

    10 million edges take seconds. Besides the result and one transposed copy of the edges, this needs a
    few bytes per node.

    Args:
        graph: Graph with its edges in this process. Give the training graph of a split, so that held-out
            links do not leak into the result.
        edge_type: The edge type.
        through: Node type of the shared end, by default the source.
        min_count: Smallest number of paths that connects two nodes, default 3.
        threads: Number of threads, default 1.
    Returns:
        Each pair in both directions, sorted by destination and then by source, without self-loops. The
        column "count" (int32) has the number of paths.
    Raises:
        ValueError: The graph lacks the edge type, or `through` is not one of its ends.
    Example:
        >>> buys = khop.EdgeTable(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 2, 0, 2]))
        >>> nodes = {"user": khop.NodeTable(2), "item": khop.NodeTable(3)}
        >>> graph = khop.open_graph(khop.write_graph(tmp / "shop", nodes, {"user buys item": buys}))
        >>> pairs = khop.cooccurrence(graph, "user buys item", min_count=2)
        >>> pairs.sources.tolist(), pairs.destinations.tolist(), pairs.columns["count"].tolist()
        ([2, 0], [0, 2], [2, 2])
    """
    graph_of("graph", graph)
    if whole_number("min_count", min_count, most=(1 << 31) - 1) < 1:
        raise ValueError(f"min_count {min_count}: must be at least 1")
    threads = whole_number("threads", threads, 1)
    there, back = _both_ways(graph, edge_type_of(edge_type), through, threads)
    pairs, counts = cooccurrences(there, back, min_count, threads=threads)
    return EdgeTable(pairs.indices, pairs.destinations(dtype=pairs.indices.dtype), {"count": counts})


def _both_ways(
    graph: GraphStore, edge_type: EdgeType, through: NodeType | None, threads: int
) -> tuple[Csc, Csc]:
    """Return the CSC from each joined node to its shared nodes, and the CSC in the opposite direction."""
    if edge_type not in graph.schema.edge_types:
        raise ValueError(
            f"cooccurrence: no edge type {edge_type!r}; there are {list(graph.schema.edge_types)}"
        )
    source, _, destination = edge_type
    if through not in (None, source, destination):
        raise ValueError(
            f"cooccurrence of {edge_type}: through is {through!r}, must be one of its ends, "
            f"{source!r} or {destination!r}"
        )
    by_destination = graph.local_csc(edge_type)
    by_destination.check()
    rows = by_destination.destinations()
    dtype = torch.promote_types(index_dtype(by_destination.num_rows), by_destination.indices.dtype)
    by_source, _ = build_csc(
        rows.to(dtype),
        by_destination.indices.to(dtype),
        graph.num_nodes(destination),
        graph.num_nodes(source),
        threads=threads,
    )
    shared_is_source = through in (None, source)
    return (by_destination, by_source) if shared_is_source else (by_source, by_destination)


Fanout = int | Mapping[EdgeType, int]  # of one hop: for all edge types, or by edge type


@dataclass(frozen=True, eq=False)
class Topology:
    """All edges of a graph, in one or more pieces of consecutive destinations."""

    counts: Mapping[NodeType, int]
    edges: Mapping[EdgeType, Sequence[tuple[int, Csc]]]  # pieces: the node of the first row, and the rows

    @classmethod
    def of(cls, graph: CscGraph) -> Topology:
        """Return the edges of a graph in one piece."""
        return cls(graph.counts, {t: [(0, csc)] for t, csc in graph.edges.items()})

    @classmethod
    def of_store(cls, graph: GraphStore) -> Topology:
        """Return all edges of a graph; Unsupported if this process lacks some of them."""
        schema = graph.schema
        counts = {t: graph.num_nodes(t) for t in schema.node_types}
        return cls(counts, {t: [(0, graph.local_csc(t))] for t in schema.edge_types})

    @classmethod
    def of_parts(cls, parts: Sequence[GraphFolder]) -> Topology:
        """Return the edges of all parts of a graph, by global ids."""
        placed = [(part, part.manifest.part) for part in parts]
        entries = [(part, entry) for part, entry in placed if entry is not None]
        schema, offsets = parts[0].schema, entries[0][1].offsets
        return cls(
            {t: offsets[t][-1] for t in schema.node_types},
            {
                t: [(entry.offsets[t[2]][entry.number], part.csc(t)) for part, entry in entries]
                for t in schema.edge_types
            },
        )


def visit_probabilities(
    topology: Topology, seeds: Mapping[NodeType, Tensor], batch_size: int, fanouts: Sequence[Fanout]
) -> dict[NodeType, Tensor]:
    """Estimate the probability that a batch of `batch_size` uniformly drawn seeds contains a node.

    Returns float64 (nodes) by node type: the vertex-inclusion probability of Kaler et al. (SALIENT++,
    MLSys 2023). A neighbor is drawn with probability min(1, fanout / degree), and draws over different edges
    count as independent. Each fanout takes one pass over all edges; -1 takes all neighbors. Weights and times
    are ignored.
    """
    count = sum(ids.numel() for ids in seeds.values())
    reached = {t: torch.zeros(nodes, dtype=torch.float64) for t, nodes in topology.counts.items()}
    for node_type, ids in seeds.items():
        reached[node_type][ids] = min(1.0, batch_size / max(count, 1))
    missed = {t: torch.log1p(-p) for t, p in reached.items()}  # log of the probability to miss the node
    for fanout in fanouts:
        of_hop = _missed_by_hop(topology, reached, fanout)
        reached = {t: -torch.expm1(log) for t, log in of_hop.items()}
        missed = {t: log + of_hop[t] for t, log in missed.items()}
    return {t: -torch.expm1(log) for t, log in missed.items()}


def _missed_by_hop(
    topology: Topology, reached: Mapping[NodeType, Tensor], fanout: Fanout
) -> dict[NodeType, Tensor]:
    """Return the log probability that a hop does not reach a node over any of its edges."""
    missed = {t: torch.zeros_like(p) for t, p in reached.items()}
    for edge_type, pieces in topology.edges.items():
        source, _, destination = edge_type
        drawn = fanout if isinstance(fanout, int) else fanout[edge_type]
        for first, csc in pieces:
            _spread(csc, reached[destination][first : first + csc.num_rows], drawn, missed[source])
    return missed


def _spread(csc: Csc, reached: Tensor, fanout: int, missed: Tensor) -> None:
    csc.check()
    for span in edge_spans(csc.indptr):
        of_rows = reached[span.rows]
        degrees = csc.indptr[span.rows.start : span.rows.stop + 1].diff()
        drawn = torch.ones_like(of_rows) if fanout < 0 else (fanout / degrees).clamp(max=1)
        through = torch.log1p(-(drawn * of_rows).clamp(max=1))
        missed.index_add_(0, csc.indices[span.first : span.end].long(), span.per_edge(through))


def remote_share(
    topology: Topology,
    seeds: Mapping[NodeType, Tensor],
    assigned: Mapping[NodeType, Tensor],
    parts: int,
    batch_size: int,
    fanouts: Sequence[Fanout],
) -> float:
    """Estimate the share of a batch's nodes that are in a different part from its seeds, over all parts.

    `batch_size` is the global batch size. Each part takes an equal share, drawn from its seeds.
    """
    remote = wanted = 0.0
    for part in range(parts):
        own = {t: ids[assigned[t][ids] == part] for t, ids in seeds.items()}
        visits = visit_probabilities(topology, own, -(-batch_size // parts), fanouts)
        wanted += sum(float(p.sum()) for p in visits.values())
        remote += sum(float(p[assigned[t] != part].sum()) for t, p in visits.items())
    return remote / max(wanted, 1e-300)
