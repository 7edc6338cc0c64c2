"""Probability that a batch needs a node. It decides which remote rows are cached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from khop.graph.csc_graph import CscGraph
from khop.graph.folder import GraphFolder
from khop.graph.store import GraphStore
from khop.kernels.csc import Csc
from khop.kernels.edge_spans import edge_spans
from khop.schema import EdgeType, NodeType

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
    """Return the log of the probability that a hop reaches a node over none of its edges."""
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
    """Estimate the share of a batch's nodes that belong to another part than its seeds, over all parts.

    `batch_size` is the global batch size. Each part takes an equal share, drawn from the seeds that it owns.
    """
    remote = wanted = 0.0
    for part in range(parts):
        own = {t: ids[assigned[t][ids] == part] for t, ids in seeds.items()}
        visits = visit_probabilities(topology, own, -(-batch_size // parts), fanouts)
        wanted += sum(float(p.sum()) for p in visits.values())
        remote += sum(float(p[assigned[t] != part].sum()) for t, p in visits.items())
    return remote / max(wanted, 1e-300)
