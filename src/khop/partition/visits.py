"""How likely it is that a batch needs a node: what decides which remote rows are worth keeping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from khop.graph.csc_graph import CscGraph
from khop.kernels.csc import Csc
from khop.schema import NodeType

_CHUNK_ROWS = 1 << 16


def visit_probabilities(
    graph: CscGraph, seeds: Mapping[NodeType, Tensor], batch_size: int, fanouts: Sequence[int]
) -> dict[NodeType, Tensor]:
    """float64 (nodes): the chance that a batch of `batch_size` of the seeds, drawn uniformly, has a node.

    Vertex-inclusion probability (Kaler et al., SALIENT++, MLSys 2023): a neighbour is drawn with min(1,
    fanout / degree), and what leads to a node over different edges counts as independent. A pass over all
    edges for every fanout; -1 takes all neighbours. Edge types share the fanouts.
    """
    count = sum(ids.numel() for ids in seeds.values())
    reached = {t: torch.zeros(graph.num_nodes(t), dtype=torch.float64) for t in graph.schema.node_types}
    for node_type, ids in seeds.items():
        reached[node_type][ids] = min(1.0, batch_size / max(count, 1))
    missed = {t: torch.log1p(-p) for t, p in reached.items()}  # log of the chance that it is not in the batch
    for fanout in fanouts:
        next_missed = {t: torch.zeros_like(p) for t, p in reached.items()}
        for edge_type in graph.schema.edge_types:
            source, _, destination = edge_type
            _spread(graph.csc(edge_type), reached[destination], fanout, next_missed[source])
        reached = {t: -torch.expm1(log) for t, log in next_missed.items()}
        missed = {t: missed[t] + log for t, log in next_missed.items()}
    return {t: -torch.expm1(log) for t, log in missed.items()}


def _spread(csc: Csc, reached: Tensor, fanout: int, missed: Tensor) -> None:
    for begin in range(0, csc.num_rows, _CHUNK_ROWS):
        end = min(begin + _CHUNK_ROWS, csc.num_rows)
        offsets = csc.indptr[begin : end + 1]
        degrees = offsets.diff()
        drawn = torch.ones_like(reached[begin:end]) if fanout < 0 else (fanout / degrees).clamp(max=1)
        through = torch.log1p(-(drawn * reached[begin:end]).clamp(max=1))
        sources = csc.indices[int(offsets[0]) : int(offsets[-1])].long()
        missed.index_add_(0, sources, torch.repeat_interleave(through, degrees))


def remote_share(
    graph: CscGraph,
    seeds: Mapping[NodeType, Tensor],
    assigned: Mapping[NodeType, Tensor],
    parts: int,
    batch_size: int,
    fanouts: Sequence[int],
) -> float:
    """The share of a batch's nodes that lie in another part than its seeds, of the mean over all parts.

    `batch_size` is the global batch; each part takes an equal share of it, of the seeds that it owns.
    """
    remote = wanted = 0.0
    for part in range(parts):
        own = {t: ids[assigned[t][ids] == part] for t, ids in seeds.items()}
        visits = visit_probabilities(graph, own, -(-batch_size // parts), fanouts)
        wanted += sum(float(p.sum()) for p in visits.values())
        remote += sum(float(p[assigned[t] != part].sum()) for t, p in visits.items())
    return remote / max(wanted, 1e-300)
