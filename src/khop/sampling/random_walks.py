"""Random walks: paths of nodes along in-edges, uniform or biased as in node2vec."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from khop.arguments import graph_of, instance_of, list_of, seed_number, whole_number
from khop.draw import DrawKey, Frontier, Purpose
from khop.graph.store import GraphStore
from khop.rules.rule import Hop
from khop.rules.uniform import Uniform
from khop.sampling.node2vec import Node2Vec, biased_step
from khop.sampling.node_set import check_ids
from khop.schema import EdgeType, EdgeTypeName, edge_type_of

ENDED = -1  # in place of a node, after the end of a walk


def random_walks(
    graph: GraphStore,
    starts: Tensor,
    path: Sequence[EdgeTypeName],
    *,
    bias: Node2Vec | None = None,
    seed: int = 0,
    epoch: int = 0,
    first: int = 0,
) -> Tensor:
    """Walk from each start along one edge of each type of `path`: int64 (walks, steps + 1), global ids.

    A step goes against the direction of an edge, from its destination to its source, as messages are
    sampled. Use the reverse edge types to walk the other way. The first edge type ends at the node type of
    the starts, and each further one at the sources of the one before. A walk at a node without in-edges of
    the type ends; -1 stands for the rest. Every in-edge is equally likely, unless `bias` is given.

    Walk i is a function of (graph, start, path, seed, epoch, `first` + i). `first` is the number of the first
    walk, if walks are made in several calls or on several ranks. Collective where the graph is: each rank may
    have other starts, also none.
    """
    graph_of("graph", graph)
    steps = checked_path(graph, path)
    check_ids("starts", starts, graph.num_nodes(steps[0][2]))
    key = DrawKey.of(seed_number(seed), Purpose.WALK, whole_number("epoch", epoch, 0))
    numbers = torch.arange(starts.numel()) + whole_number("first", first, 0, (1 << 62))
    check_bias(bias, path, steps)
    before: Tensor | None = None
    at = starts.long()
    visited = [at]
    for number, edge_type in enumerate(steps, start=1):
        after = next_step(graph, edge_type, (before, at), numbers, number, key, bias)
        before, at = at, after
        visited.append(at)
    return torch.stack(visited, dim=1)


def checked_path(graph: GraphStore, path: Sequence[EdgeTypeName]) -> list[EdgeType]:
    """Return the edge types of a walk; ValueError unless each begins where the one before led."""
    steps = [
        edge_type_of(name) for name in list_of("path", path, '["user buys item", "item bought-by user"]')
    ]
    if not steps:
        raise ValueError("path []: has no edge type; give one for each step")
    for edge_type in steps:
        if edge_type not in graph.schema.edge_types:
            raise ValueError(f"path: no edge type {edge_type!r}; there are {list(graph.schema.edge_types)}")
    for before, after in pairwise(steps):
        if after[2] != before[0]:
            raise ValueError(
                f"path: {after} after {before}: a step goes from destination to source, so it must end at "
                f"{before[0]!r}"
            )
    return steps


def check_bias(bias: Node2Vec | None, path: Sequence[EdgeTypeName], steps: list[EdgeType]) -> None:
    """Raise ValueError for a bias of another type, or of walks along several edge types."""
    if bias is None:
        return
    instance_of("bias", bias, Node2Vec, "must be khop.Node2Vec(p, q) or None")
    if len(set(steps)) > 1:
        raise ValueError(f"path {list(path)} with {bias}: must be of one edge type; leave bias out")


def next_step(
    graph: GraphStore,
    edge_type: EdgeType,
    last: tuple[Tensor | None, Tensor],
    numbers: Tensor,
    step: int,
    key: DrawKey,
    bias: Node2Vec | None,
) -> Tensor:
    """Return the next node of each walk, int64 (walks): one in-neighbor, or -1 if it has ended or ends.

    `last` has the last two nodes of each walk; the first step has one, and is uniform. In a uniform step a
    walk is a frontier of one node with a tree of its own, `numbers`, drawn from with fanout 1.
    """
    before, at = last
    if bias is not None and before is not None:
        return biased_step(graph, edge_type, (before, at), numbers, step, key, bias)
    going = at >= 0
    hop = Hop(step, {edge_type: 1}, Uniform(), edge_ids=False)
    walkers = Frontier(at[going], tree=numbers[going])
    found = graph.sample_hop({edge_type[2]: walkers}, hop, key)[edge_type]
    after = torch.full_like(walkers.nodes, ENDED)
    after[found.offsets.diff() > 0] = found.nodes.long()
    return torch.full_like(at, ENDED).masked_scatter_(going, after)
