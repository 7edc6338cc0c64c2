"""GraphSAINT: subgraphs induced by drawn nodes, with normalized edges and losses (Zeng et al. 2020)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from khop.arguments import instance_of, seed_number, whole_number
from khop.batch import Sample
from khop.draw import DrawKey, Purpose
from khop.graph.needs import Need, NegativeNeed
from khop.graph.store import GraphStore
from khop.rules.rule import Rule
from khop.rules.uniform import Uniform
from khop.sampling.group_subgraph import GroupEdges, GroupGraph, Members
from khop.sampling.groups import GroupSeeds, group_share, with_targets
from khop.sampling.saint_draws import SaintDraw, SaintEdges, SaintNodes, SaintWalks, drawn_nodes
from khop.sampling.sampler import GROUPS, GroupShare, SamplerBase, SeedKind, Seeds
from khop.schema import EdgeType, NodeType, only

_NODES_AT_ONCE = 1 << 18  # of the presampled subgraphs of one hop


@dataclass(frozen=True)
class SaintCounts:
    """The numbers of presampled subgraphs that contain each node and each edge."""

    subgraphs: int
    nodes: Tensor  # int64 (nodes)
    edges: Tensor  # int32 (edges), by position in the graph's CSC order


class SaintSampler(SamplerBase):
    """GraphSAINT's sampler: a group is one subgraph, induced by the nodes that `draw` gives.

    The seeds of a loader are the nodes with a loss. An epoch has `groups_per_epoch` subgraphs, and a step
    takes `batch_size` of them; the loss of a step is the mean of theirs. `layers` is the number of blocks:
    each is the whole subgraph.

    Before the first epoch, subgraphs are drawn under a key of their own (`Purpose.PRESAMPLE`, `seed`), until
    they contain `coverage` times as many nodes as the graph. With the number of them that contain a node,
    C_v, and an edge, C_uv, edges are weighted by C_v / C_uv = 1 / alpha, times the weight of the rule (1 /
    in-degree for `Uniform()`), and the losses of nodes by 1 / lambda = subgraphs / C_v. A count of 0 is taken
    as 1. Every rank draws all of them; the counts take 4 bytes per edge and 8 per node.

    The nodes are of one type, with edges of one type among them. Zeng et al., arXiv 1907.04931.
    """

    def __init__(
        self,
        graph: GraphStore,
        draw: SaintNodes | SaintEdges | SaintWalks,
        *,
        layers: int,
        groups_per_epoch: int | None = None,
        coverage: int = 50,
        seed: int = 0,
        rule: Rule = Uniform(),
    ) -> None:
        super().__init__(graph)
        remedy = "must be khop.SaintNodes(...), SaintEdges(...) or SaintWalks(...)"
        instance_of("draw", draw, (SaintNodes, SaintEdges, SaintWalks), remedy)
        self._edge_type = only({t: t for t in graph.schema.edge_types}, "the edge type of khop.SaintSampler")
        source, _, destination = self._edge_type
        if source != destination:
            raise ValueError(
                f"edges {self._edge_type}: a walk needs edges among nodes of one type; give the sampler "
                "graph.only([edge type]) of such edges"
            )
        self.draw: SaintDraw = draw
        self.rule = rule
        self._num_nodes = graph.num_nodes(destination)
        self._coverage = whole_number("coverage", coverage, 1)
        self._seed = seed_number(seed)
        if groups_per_epoch is None:
            groups_per_epoch = max(1, -(-self._num_nodes // draw.most_nodes))
        self._groups_per_epoch = whole_number("groups_per_epoch", groups_per_epoch, 1)
        self._subgraphs = GroupGraph(graph, layers, rule)

    @property
    def num_layers(self) -> int:
        """Number of blocks in a sample."""
        return self._subgraphs.layers

    @property
    def seed_kinds(self) -> frozenset[SeedKind]:
        """Groups: each is one subgraph."""
        return GROUPS

    def needs(self, seed_types: Collection[NodeType | EdgeType]) -> tuple[Need, ...]:
        """Return the arrays that nodes are drawn from, and those of the rule."""
        return (NegativeNeed(self._edge_type, self.draw.first), *self._subgraphs.needs)

    def groups(self, nodes: Mapping[NodeType, Tensor]) -> GroupSeeds:
        """Return the subgraphs of an epoch, after presampling. Collective where the graph is."""
        targets = {t: ids.unique() for t, ids in nodes.items()}
        settings = f"{self.draw}:{self._coverage}:{self._seed}:{self.counts.subgraphs}"
        return GroupSeeds("subgraphs", self._groups_per_epoch, 1, targets, settings)

    @cached_property
    def counts(self) -> SaintCounts:
        """The presampled subgraphs, drawn on first use. Collective where the graph is."""
        key = DrawKey.of(self._seed, Purpose.PRESAMPLE)
        nodes = torch.zeros(self._num_nodes, dtype=torch.int64)
        edges = torch.zeros(self.graph.num_edges(self._edge_type), dtype=torch.int32)
        wanted, drawn, subgraphs = self._coverage * self._num_nodes, 0, 0
        at_once = max(1, min(_NODES_AT_ONCE // self.draw.most_nodes, -(-wanted // self.draw.most_nodes)))
        while drawn < wanted:
            members = self._members(torch.arange(subgraphs, subgraphs + at_once), key)
            (adjacency,) = self._subgraphs.sample(members).blocks[0].adjacencies.values()
            assert adjacency.edge_ids is not None
            of_type = members[self._edge_type[2]].nodes
            nodes += torch.bincount(of_type, minlength=self._num_nodes)
            edges += torch.bincount(adjacency.edge_ids, minlength=edges.numel()).int()
            drawn, subgraphs = drawn + of_type.numel(), subgraphs + at_once
        return SaintCounts(subgraphs, nodes, edges)

    def sample(self, seeds: Seeds, key: DrawKey) -> Sample:
        """Return the subgraphs of a rank's groups, one after another, with the seed nodes in them."""
        share = group_share(seeds)
        members = self._members(share.positions, key)
        sample = self._subgraphs.sample(members, self._normalized)
        return with_targets(sample, share, members, self._loss_weights)

    def _members(self, positions: Tensor, key: DrawKey) -> dict[NodeType, Members]:
        """Draw the nodes of some subgraphs: each node once per subgraph, by original id."""
        node_type = self._edge_type[2]
        drawn = drawn_nodes(self.graph, self._edge_type, self.draw, positions, key)
        originals = self.graph.original_ids(node_type)
        places = drawn if originals is None else originals[drawn]
        order = places.argsort(dim=1, stable=True)
        places, drawn = places.gather(1, order), drawn.gather(1, order)
        is_first = torch.ones_like(places, dtype=torch.bool)
        is_first[:, 1:] = places[:, 1:] != places[:, :-1]
        sizes = is_first.sum(dim=1)
        return {node_type: Members(drawn[is_first], torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]))}

    def _normalized(self, edge_type: EdgeType, edges: GroupEdges) -> Tensor:
        """Divide the weights of the rule, or those of a mean over all in-edges, by alpha."""
        counts, destinations = self.counts, edges.destinations
        weights = edges.degrees[edges.rows].double().reciprocal()
        if edges.weights is not None:
            weights = edges.weights.double()
        inverse = counts.nodes[destinations].double() / counts.edges[edges.edge_ids].clamp(min=1)
        return (weights * inverse.clamp_(min=1)).float()

    def _loss_weights(self, share: GroupShare, node_type: NodeType, nodes: Tensor) -> Tensor:
        """Return 1 / lambda of each node, divided by the number of nodes with a loss."""
        inside = self.counts.nodes[nodes].clamp(min=1)
        return self.counts.subgraphs / (inside * share.num_targets).double()
