"""Steps of node2vec's walks, whose probabilities depend on the node before (Grover and Leskovec 2016)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from khop.arguments import real_number
from khop.draw import DrawKey, Frontier, Neighbors, stream
from khop.graph.store import GraphStore
from khop.kernels.philox import WORD, mix64_reference, philox_reference, reduce_wide, signed
from khop.rules.rule import Hop
from khop.rules.uniform import Uniform
from khop.schema import EdgeType

ONE = 1 << 20  # the largest weight of an edge


@dataclass(frozen=True)
class Node2Vec:
    """Weights of the edges of a step from v, after t: 1 / p back to t, 1 to in-neighbors of t, else 1 / q.

    Large p avoids to return, large q keeps near the start. Weights are rounded to 1 / 2^20 of the largest.
    """

    p: float = 1.0
    q: float = 1.0

    def __post_init__(self) -> None:
        for name, value in (("p", self.p), ("q", self.q)):
            if not 1 / 1024 <= real_number(name, value) <= 1024:
                raise ValueError(f"{name} {value}: must be from 1/1024 to 1024; 1 has no effect")

    @property
    def weights(self) -> tuple[int, int, int]:
        """The weights of an edge back, to a neighbor of the node before, and to any other node."""
        given = (1 / self.p, 1.0, 1 / self.q)
        back, near, far = (max(1, round(ONE * weight / max(given))) for weight in given)
        return back, near, far


def biased_step(
    graph: GraphStore,
    edge_type: EdgeType,
    before: tuple[Tensor, Tensor],
    numbers: Tensor,
    step: int,
    key: DrawKey,
    bias: Node2Vec,
) -> Tensor:
    """Return the next node of each walk, int64 (walks), or -1 if it has ended or ends.

    `before` are the last two nodes of each. A step reads all in-edges of both: one hop.
    """
    last, at = before
    going = at >= 0
    last, at, numbers = last[going], at[going], numbers[going]
    nodes, rows = torch.cat([at, last]).unique(return_inverse=True)
    hop = Hop(step, {edge_type: -1}, Uniform(), edge_ids=False)
    found = graph.sample_hop({edge_type[2]: Frontier(nodes)}, hop, key)[edge_type]
    sources, degrees = _rows(found, rows[: at.numel()])
    walk = torch.repeat_interleave(degrees)
    sums = _weights(found, sources, walk, (last, rows[at.numel() :]), bias).cumsum(0)
    ends = degrees.cumsum(0)
    totals = torch.cat([sums.new_zeros(1), sums])[torch.stack([ends - degrees, ends])]
    can_go = degrees > 0
    picked = totals[0] + _draws(graph, edge_type, at, numbers, step, key, totals[1] - totals[0])
    places = torch.searchsorted(sums, picked[can_go], right=True)
    after = torch.full_like(at, -1).masked_scatter_(can_go, sources[places])
    return torch.full_like(going, -1, dtype=torch.int64).masked_scatter_(going, after)


def _rows(found: Neighbors, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the neighbors of some rows, int64, one row after another, and the size of each row."""
    degrees = found.offsets.diff()[rows]
    ends = degrees.cumsum(0)
    places = torch.arange(int(degrees.sum())) + torch.repeat_interleave(
        found.offsets[rows] - (ends - degrees), degrees
    )
    return found.nodes[places].long(), degrees


def _weights(
    found: Neighbors, sources: Tensor, walk: Tensor, last: tuple[Tensor, Tensor], bias: Node2Vec
) -> Tensor:
    """Return int64 (edges). `last` has the node before of each walk, and its row."""
    nodes, rows = last
    most = int(torch.cat([found.nodes.long(), sources, nodes]).amax()) + 1 if sources.numel() else 1
    pairs = (found.by_row(torch.arange(found.offsets.numel() - 1)) * most + found.nodes.long()).sort().values
    wanted = rows[walk] * most + sources
    at = torch.searchsorted(pairs, wanted).clamp_(max=max(pairs.numel() - 1, 0))
    is_near = pairs[at] == wanted if pairs.numel() else torch.zeros_like(wanted, dtype=torch.bool)
    back, near, far = bias.weights
    weights = torch.where(is_near, near, far)
    return torch.where(sources == nodes[walk], back, weights)


def _draws(
    graph: GraphStore,
    edge_type: EdgeType,
    at: Tensor,
    numbers: Tensor,
    step: int,
    key: DrawKey,
    bounds: Tensor,
) -> Tensor:
    """Draw a number below each bound, int64 (walks): the first two words of the node in the walk's tree."""
    originals = graph.original_ids(edge_type[2])
    ids = at if originals is None else originals[at]
    keys = mix64_reference(signed(key.value) ^ mix64_reference(numbers))
    counters = torch.stack(
        [ids & WORD, ids >> 32, torch.full_like(ids, stream(step, edge_type)), torch.zeros_like(ids)], dim=1
    )
    words = philox_reference(torch.stack([keys & WORD, (keys >> 32) & WORD], dim=1), counters)
    return reduce_wide(words[:, 0], words[:, 1], bounds)
