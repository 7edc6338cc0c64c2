"""Quality of a partition: the share of cut edges, and the balance of the parts."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from khop.graph.csc_graph import CscGraph
from khop.kernels.csc import Csc
from khop.kernels.edge_spans import edge_spans
from khop.partition.balance import Balance, Numbering
from khop.partition.book import Quality, edge_key
from khop.schema import NodeType


def quality_of(
    graph: CscGraph, numbering: Numbering, balance: Balance, assigned: Mapping[NodeType, Tensor], parts: int
) -> Quality:
    """Measure a partition.

    The result has the share of edges between two parts, and for each balanced quantity the load of each part
    relative to its equal share.
    """
    counts = {
        edge_key(t): (cut_edges(graph.csc(t), assigned[t[0]], assigned[t[2]]), graph.csc(t).num_edges)
        for t in graph.schema.edge_types
    }
    counts["all"] = (sum(cut for cut, _ in counts.values()), sum(edges for _, edges in counts.values()))
    cut = {key: cut / max(edges, 1) for key, (cut, edges) in counts.items()}
    return Quality(cut, _shares(graph, numbering, balance, assigned, parts))


def cut_edges(csc: Csc, sources: Tensor, destinations: Tensor) -> int:
    """Count the edges between two parts. `sources` and `destinations` are int32 (nodes): the part of each."""
    csc.check()
    cut = 0
    for span in edge_spans(csc.indptr):
        there = sources[csc.indices[span.first : span.end].long()]
        cut += int((span.per_edge(destinations[span.rows]) != there).sum())
    return cut


def _shares(
    graph: CscGraph, numbering: Numbering, balance: Balance, assigned: Mapping[NodeType, Tensor], parts: int
) -> dict[str, tuple[float, ...]]:
    part_of = torch.cat([assigned[t] for t in numbering.node_types]).long()
    types = torch.cat([torch.full_like(assigned[t], i) for i, t in enumerate(numbering.node_types)]).long()
    shares: dict[str, tuple[float, ...]] = {}
    for name, limit in balance.limits.items():
        weights = torch.tensor(limit.by_type)[types]
        if limit.member:
            weights = weights * (balance.members & limit.member != 0)
        if limit.by_degree:
            weights = weights * _in_degrees(graph, numbering)
        loads = torch.zeros(parts, dtype=torch.int64).index_add_(0, part_of, weights)
        shares[name] = tuple((loads * parts / max(balance.totals[name], 1)).tolist())
    return shares


def _in_degrees(graph: CscGraph, numbering: Numbering) -> Tensor:
    degrees = torch.zeros(numbering.num_nodes, dtype=torch.int64)
    for edge_type in graph.schema.edge_types:
        first = numbering.first(edge_type[2])
        degrees[first : first + graph.num_nodes(edge_type[2])] += graph.csc(edge_type).degrees()
    return degrees
