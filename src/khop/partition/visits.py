"""How likely it is that a batch needs a node: what decides which remote rows are worth keeping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from khop.graph.csc_graph import CscGraph
from khop.graph.folder import GraphFolder
from khop.kernels.csc import Csc
from khop.schema import EdgeType, NodeType

_CHUNK_ROWS = 1 << 16
Fanout = int | Mapping[EdgeType, int]  # of a hop, for all edge types or for each


@dataclass(frozen=True, eq=False)
class Topology:
    """All edges of a graph, in as many pieces as its destinations lie in."""

    counts: Mapping[NodeType, int]
    edges: Mapping[EdgeType, Sequence[tuple[int, Csc]]]  # each with the node that its first row is of

    @classmethod
    def of(cls, graph: CscGraph) -> Topology:
        """The edges of a graph in one piece."""
        return cls(graph.counts, {t: [(0, csc)] for t, csc in graph.edges.items()})

    @classmethod
    def of_parts(cls, parts: Sequence[GraphFolder]) -> Topology:
        """The edges of all parts of a graph, by global ids."""
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
    """float64 (nodes): the chance that a batch of `batch_size` of the seeds, drawn uniformly, has a node.

    Vertex-inclusion probability (Kaler et al., SALIENT++, MLSys 2023): a neighbor is drawn with min(1,
    fanout / degree), and what leads to a node over different edges counts as independent. A pass over all
    edges for every fanout; -1 takes all neighbors. Weights and times are not looked at.
    """
    count = sum(ids.numel() for ids in seeds.values())
    reached = {t: torch.zeros(nodes, dtype=torch.float64) for t, nodes in topology.counts.items()}
    for node_type, ids in seeds.items():
        reached[node_type][ids] = min(1.0, batch_size / max(count, 1))
    missed = {t: torch.log1p(-p) for t, p in reached.items()}  # log of the chance that it is not in the batch
    for fanout in fanouts:
        of_hop = _missed_by_hop(topology, reached, fanout)
        reached = {t: -torch.expm1(log) for t, log in of_hop.items()}
        missed = {t: log + of_hop[t] for t, log in missed.items()}
    return {t: -torch.expm1(log) for t, log in missed.items()}


def _missed_by_hop(
    topology: Topology, reached: Mapping[NodeType, Tensor], fanout: Fanout
) -> dict[NodeType, Tensor]:
    """The log of the chance that a hop leads to a node over none of its edges."""
    missed = {t: torch.zeros_like(p) for t, p in reached.items()}
    for edge_type, pieces in topology.edges.items():
        source, _, destination = edge_type
        drawn = fanout if isinstance(fanout, int) else fanout[edge_type]
        for first, csc in pieces:
            _spread(csc, reached[destination][first : first + csc.num_rows], drawn, missed[source])
    return missed


def _spread(csc: Csc, reached: Tensor, fanout: int, missed: Tensor) -> None:
    csc.check()
    for begin in range(0, csc.num_rows, _CHUNK_ROWS):
        end = min(begin + _CHUNK_ROWS, csc.num_rows)
        offsets = csc.indptr[begin : end + 1]
        degrees = offsets.diff()
        drawn = torch.ones_like(reached[begin:end]) if fanout < 0 else (fanout / degrees).clamp(max=1)
        through = torch.log1p(-(drawn * reached[begin:end]).clamp(max=1))
        sources = csc.indices[int(offsets[0]) : int(offsets[-1])].long()
        missed.index_add_(0, sources, torch.repeat_interleave(through, degrees))


def remote_share(
    topology: Topology,
    seeds: Mapping[NodeType, Tensor],
    assigned: Mapping[NodeType, Tensor],
    parts: int,
    batch_size: int,
    fanouts: Sequence[Fanout],
) -> float:
    """The share of a batch's nodes that lie in another part than its seeds, of the mean over all parts.

    `batch_size` is the global batch; each part takes an equal share of it, of the seeds that it owns.
    """
    remote = wanted = 0.0
    for part in range(parts):
        own = {t: ids[assigned[t][ids] == part] for t, ids in seeds.items()}
        visits = visit_probabilities(topology, own, -(-batch_size // parts), fanouts)
        wanted += sum(float(p.sum()) for p in visits.values())
        remote += sum(float(p[assigned[t] != part].sum()) for t, p in visits.items())
    return remote / max(wanted, 1e-300)
