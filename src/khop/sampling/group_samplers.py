"""Samplers of subgraphs: Cluster-GCN (Chiang et al. 2019), ShaDow (Zeng et al. 2021) and GraphSAINT (2020).

GraphSAINT draws nodes, edges or random walks, and normalizes edges and losses by their probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from khop.arguments import as_mapping, checked_field, graph_of, instance_of, seed_number, shown, whole_number
from khop.batch import Sample
from khop.components import Count, CountOrNone, Default, Text
from khop.draw import (
    DegreeNegatives,
    DrawKey,
    DrawnNegatives,
    Frontier,
    FrontierByType,
    NeighborsByType,
    Positives,
    Purpose,
    UniformNegatives,
)
from khop.graph.needs import Need, NegativeNeed
from khop.graph.rule import FrontierField, Hop, Rule
from khop.graph.store import GraphStore
from khop.sampling.groups import (
    GroupEdges,
    GroupGraph,
    Members,
    equal_weights,
    group_share,
    with_seeds,
    with_targets,
)
from khop.sampling.links.links import SamplerInputs
from khop.sampling.node_set import NodeSetPool, TreeSet
from khop.sampling.rules.uniform import UNIFORM
from khop.sampling.sampler import Expansion, Fanout, SamplerBase, expand, fanouts_by_type
from khop.sampling.seeds import GROUPS, GroupSeeds, GroupShare, SeedKind, Seeds, array_bytes, digest_of
from khop.schema import EdgeType, NodeType, only, sole_type


@dataclass(frozen=True)
class GroupOptions:
    """Options of a sampler of groups of nodes, as set by a run."""

    groups_per_step: Count = 1
    """Number of groups of seeds per optimizer step, over all processes. It replaces training.batch_size"""


@dataclass(frozen=True)
class ClusterOptions(GroupOptions):
    """Options of Cluster-GCN's sampler, as a run sets them."""

    cluster_column: Text = "cluster"
    """Node column with the cluster of each node, written by `khop graph cluster`"""
    clusters_per_group: Count = 1
    """Number of clusters per subgraph"""


def _layers(context: SamplerInputs) -> int:
    """Return the number of blocks; ValueError for links, which are in no group."""
    if context.links is not None:
        raise ValueError("sampler.kind: groups consist of nodes, not of links; leave sampler.kind out")
    return context.layers


class ClusterSampler(SamplerBase):
    """Cluster-GCN's sampler: a group is `per_group` clusters and all edges among their nodes.

    A shuffled epoch combines different clusters each time, and uses each cluster once. A cluster without
    nodes or seeds does not contribute to the loss.

    The seeds of a loader are the nodes with a loss; the mean over all groups of an epoch is the mean over all
    seeds. A step takes `batch_size` groups; its loss is the mean loss of the groups. Chiang et al., arXiv
    1905.07953.

    Args:
        graph: Graph to sample.
        clusters: Cluster of each node, whole numbers from 0 (nodes), by node type if there are several.
            `khop.clusters_of` reads the column that `khop.cluster_graph` writes.
        layers: Number of blocks; each is the whole subgraph.
        per_group: Clusters per group, default 1.
        rule: Rule that determines the weights of neighbors, `Uniform()` by default.
    Raises:
        ValueError: There is not one cluster per node.
    Example:
        >>> graph = khop.open_graph("debian")
        >>> clusters = torch.arange(graph.num_nodes("package")) // 1000
        >>> sampler = khop.ClusterSampler(graph, clusters, layers=2, per_group=2)
        >>> khop.Loader(sampler, "all", batch_size=1).batch(epoch=0, step=0).sample.num_groups
        1
    """

    Options = ClusterOptions

    @classmethod
    def build(cls, options: ClusterOptions, context: SamplerInputs) -> ClusterSampler:
        """Make the sampler of a run."""
        clusters, per_group = context.clusters(options.cluster_column), options.clusters_per_group
        layers = _layers(context)
        return cls(context.graph, clusters, layers=layers, per_group=per_group, rule=context.rule)

    def __init__(
        self,
        graph: GraphStore,
        clusters: Tensor | Mapping[NodeType, Tensor],
        *,
        layers: int,
        per_group: int = 1,
        rule: Rule = UNIFORM,
    ) -> None:
        super().__init__(graph)
        self.rule = rule
        self._per_group = whole_number("per_group", per_group, 1)
        self._subgraphs = GroupGraph(graph, layers, rule)
        types = graph.schema.node_types
        by_type = as_mapping(clusters, lambda one: {sole_type(types, "clusters without a node type"): one})
        numbers = {t: _checked(graph, t, by_type.get(t)) for t in types}
        self._count = 1 + max(int(of_type.max()) if of_type.numel() else -1 for of_type in numbers.values())
        self._nodes = {t: self._by_cluster(t, of_type) for t, of_type in numbers.items()}

    @property
    def num_clusters(self) -> int:
        """The largest number of a cluster, plus 1."""
        return self._count

    @property
    def num_layers(self) -> int:
        """Number of blocks in a sample."""
        return self._subgraphs.layers

    @property
    def seed_kinds(self) -> frozenset[SeedKind]:
        """Groups of clusters."""
        return GROUPS

    def needs(self, seed_types: Collection[NodeType | EdgeType]) -> tuple[Need, ...]:
        """Return the arrays of the rule."""
        return self._subgraphs.needs

    def groups(self, nodes: Mapping[NodeType, Tensor]) -> GroupSeeds:
        """Return the clusters of an epoch."""
        targets = {t: ids.unique() for t, ids in nodes.items()}
        if not any(ids.numel() for ids in targets.values()):
            raise ValueError(f"seeds: none given for types {list(targets)}; an epoch needs one or more")
        return GroupSeeds("clusters", self._count, self._per_group, targets, self._digest())

    def sample(self, seeds: Seeds, key: DrawKey) -> Sample:
        """Return the subgraphs of a rank's groups, one after another, with the seed nodes in them."""
        share = group_share(seeds)
        members = {node_type: self._members(node_type, share) for node_type in self._nodes}
        return with_targets(self._subgraphs.sample(members), share, members, equal_weights)

    def _members(self, node_type: NodeType, share: GroupShare) -> Members:
        of_cluster = self._nodes[node_type]
        begins, sizes = of_cluster.offsets[share.elements], of_cluster.offsets.diff()[share.elements]
        ends = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        places = torch.arange(int(ends[-1])) + torch.repeat_interleave(begins - ends[:-1], sizes)
        return Members(of_cluster.nodes[places], ends[share.offsets])

    def _by_cluster(self, node_type: NodeType, numbers: Tensor) -> Members:
        """Return the nodes of each cluster, by original id."""
        originals = self.graph.original_ids(node_type)
        order = torch.arange(numbers.numel()) if originals is None else originals.argsort()
        nodes = order[numbers[order].argsort(stable=True)]
        sizes = torch.bincount(numbers, minlength=self._count)
        return Members(nodes, torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]))

    def _digest(self) -> str:
        """Return the hash of the clusters, which partitioning does not change."""

        def hash_into(update: Callable[[bytes | memoryview], None]) -> None:
            for node_type, of_type in self._nodes.items():
                originals = self.graph.original_ids(node_type)
                update(array_bytes(of_type.offsets))
                update(array_bytes(of_type.nodes if originals is None else originals[of_type.nodes]))

        return digest_of(hash_into)


def _checked(graph: GraphStore, node_type: NodeType, given: object) -> Tensor:
    graph_of("graph", graph)
    count, remedy = graph.num_nodes(node_type), "give whole numbers from 0 on, one per node"
    if given is None:
        raise ValueError(f"clusters: none for {node_type!r} nodes; {remedy}, of each node type")
    if not isinstance(given, Tensor) or given.is_floating_point() or given.dtype == torch.bool:
        raise ValueError(f"clusters of {node_type!r}: {shown(given)}; {remedy}")
    if given.shape != (count,):
        shape = tuple(given.shape)
        raise ValueError(f"clusters of {node_type!r}: of shape {shape}, for {count:,} nodes; {remedy}")
    numbers = given.long()
    if count and int(numbers.min()) < 0:
        node = int(numbers.argmin())
        raise ValueError(f"clusters of {node_type!r}: node {node} has {int(numbers[node])}; {remedy}")
    return numbers


@dataclass(frozen=True)
class ShadowOptions(GroupOptions):
    """Options of ShaDow's sampler, as a run sets them."""

    seeds_per_group: Count = 1
    """Number of seeds per subgraph. With 1, each seed has a separate subgraph"""


class ShadowSampler(SamplerBase):
    """ShaDow's sampler: neighbors of a group of seeds, drawn by `fanouts`, and all edges among these nodes.

    A step takes `batch_size` groups; its loss is the mean loss of the groups. Edges have the weights of
    `rule` if all its neighbors have weights, as with `Sum`; others are averaged. `sample.trees` has the group
    of each node. Zeng et al., arXiv 2201.07858.

    Args:
        graph: Graph to sample.
        fanouts: Neighbors per hop, as in `NeighborSampler`.
        layers: Number of blocks, each the whole subgraph; it may differ from the number of hops.
        per_group: Seeds per group. With 1 (default), each seed has a separate subgraph, as in
            torch_geometric; with more, these seeds share one subgraph, as in DGL.
        rule: Sampling rule, `Uniform()` by default.
    Raises:
        ValueError: The fanouts do not fit the graph, or the rule does not draw for disjoint groups.
    Example:
        >>> sampler = khop.ShadowSampler(khop.open_graph("debian"), fanouts=[10, 5], layers=3)
        >>> len(khop.Loader(sampler, range(20), batch_size=10).batch(epoch=0, step=0).blocks)
        3
    """

    Options = ShadowOptions

    @classmethod
    def build(cls, options: ShadowOptions, context: SamplerInputs) -> ShadowSampler:
        """Make the sampler of a run."""
        layers, per_group = _layers(context), options.seeds_per_group
        return cls(context.graph, context.fanouts, layers=layers, per_group=per_group, rule=context.rule)

    def __init__(
        self,
        graph: GraphStore,
        fanouts: Sequence[Fanout],
        *,
        layers: int,
        per_group: int = 1,
        rule: Rule = UNIFORM,
    ) -> None:
        super().__init__(graph)
        self._subgraphs = GroupGraph(graph, layers, rule)
        if FrontierField.TREE not in rule.frontier_fields:
            raise ValueError(
                f"rule {rule}: does not support disjoint groups; give for example khop.Uniform()"
            )
        self.rule = rule
        self.fanouts = tuple(fanouts_by_type(graph.schema, fanouts))
        self._hops = tuple(Hop(n, of_hop, rule, edge_ids=False) for n, of_hop in enumerate(self.fanouts, 1))
        self._per_group = whole_number("per_group", per_group, 1)
        self._node_sets = NodeSetPool(graph, TreeSet)

    @property
    def num_layers(self) -> int:
        """Number of blocks in a sample."""
        return self._subgraphs.layers

    @property
    def seed_kinds(self) -> frozenset[SeedKind]:
        """Groups of seed nodes."""
        return GROUPS

    def needs(self, seed_types: Collection[NodeType | EdgeType]) -> tuple[Need, ...]:
        """Return the arrays of the rule."""
        return self._subgraphs.needs

    def groups(self, nodes: Mapping[NodeType, Tensor]) -> GroupSeeds:
        """Return the seed nodes of an epoch, duplicates included."""
        count = sum(ids.numel() for ids in nodes.values())
        if not count:
            raise ValueError(f"seeds: none given for types {list(nodes)}; an epoch needs one or more")
        return GroupSeeds("nodes", count, self._per_group, nodes)

    def sample(self, seeds: Seeds, key: DrawKey) -> Sample:
        """Return the subgraphs of a rank's groups, one after another."""
        share = group_share(seeds)

        def draw(hop: int, frontier: FrontierByType) -> NeighborsByType:
            return self.graph.sample_hop(frontier, self._hops[hop - 1], key)

        with self._node_sets.lend() as node_set:
            reached = expand(_planted(share), draw, len(self._hops), Expansion.SUBGRAPH, node_set)
        assert reached.trees is not None
        members, index = {}, {}
        for node_type, nodes in reached.nodes.items():
            trees = reached.trees[node_type]
            order = trees.argsort(stable=True)
            sizes = torch.bincount(trees, minlength=share.count)
            ends = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
            members[node_type] = Members(nodes[order], ends)
            if node_type in reached.seed_index:
                rows = torch.empty_like(order)
                rows[order] = torch.arange(order.numel())
                index[node_type] = rows[reached.seed_index[node_type]]
        sample = self._subgraphs.sample(members)
        return with_seeds(sample, share, index, equal_weights)


def _planted(share: GroupShare) -> Seeds:
    """Return the seed nodes of the groups, with the position of the group of each."""
    groups = share.first + torch.repeat_interleave(share.offsets.diff())
    nodes, positions, start = {}, {}, 0
    for node_type, ids in share.targets.items():
        of_type = (share.elements >= start) & (share.elements < start + ids.numel())
        nodes[node_type] = ids[share.elements[of_type] - start]
        positions[node_type] = groups[of_type]
        start += ids.numel()
    return Seeds(nodes, positions, groups=share)


MOST = (1 << 31) - 1


@dataclass(frozen=True)
class SaintOptions(GroupOptions):
    """Options of GraphSAINT's samplers, as a run sets them."""

    groups_per_epoch: Annotated[CountOrNone, Default("nodes of the graph / nodes of a subgraph")] = 0
    """Number of subgraphs per epoch"""
    coverage: Count = 50
    """Number of nodes in the subgraphs that are sampled before training, as a multiple of the number of nodes
    in the graph. Their counts determine the weights of edges and losses. A larger number gives more precise
    weights, but training starts later"""

    def sampler(self, draw: SaintNodes | SaintEdges | SaintWalks, context: SamplerInputs) -> SaintSampler:
        """Make the sampler of a run by a draw of nodes."""
        return SaintSampler(
            context.graph,
            draw,
            layers=_layers(context),
            groups_per_epoch=self.groups_per_epoch or None,
            coverage=self.coverage,
            seed=context.seed,
            rule=context.rule,
        )


@dataclass(frozen=True)
class SaintSizeOptions(SaintOptions):
    """Options of subgraphs by nodes or by edges."""

    subgraph_draws: Count = 2000
    """Number of nodes (saint-node) or edges (saint-edge) that are sampled per subgraph"""


@dataclass(frozen=True)
class SaintWalkOptions(SaintOptions):
    """Options of subgraphs by random walks."""

    walk_roots: Count = 1000
    """Number of random walks per subgraph"""
    walk_length: Count = 2
    """Number of steps per walk"""


@dataclass(frozen=True)
class SaintNodes:
    """GraphSAINT's draw of nodes in proportion to their in-degree, with replacement.

    Args:
        size: Draws per subgraph.
    Raises:
        ValueError: `size` is below 1 or above 2^31 - 1.
    Example:
        >>> graph = khop.open_graph("debian")
        >>> sampler = khop.SaintSampler(graph, khop.SaintNodes(size=2000), layers=2)
    """

    Options: ClassVar[type] = SaintSizeOptions

    size: int

    @classmethod
    def build(cls, options: SaintSizeOptions, context: SamplerInputs) -> SaintSampler:
        """Make the sampler of a run."""
        return options.sampler(cls(options.subgraph_draws), context)

    def __post_init__(self) -> None:
        checked_field(self, "size", whole_number, 1, MOST)

    @property
    def first(self) -> DrawnNegatives:
        """All nodes of the subgraph."""
        return DegreeNegatives(self.size, power=1.0)

    @property
    def steps(self) -> int:
        """None: no walks."""
        return 0

    @property
    def most_nodes(self) -> int:
        """The number of draws."""
        return self.size


@dataclass(frozen=True)
class SaintEdges:
    """GraphSAINT's draw of edges u -> v in proportion to 1 / in-degree(v), with replacement.

    In a graph with both directions of every edge, a pair of nodes is drawn in proportion to 1 / degree(u)
    + 1 / degree(v), as in the paper. A node without in-edges may be drawn alone.

    Args:
        size: Draws per subgraph.
    Raises:
        ValueError: `size` is below 1 or above 2^30 - 1.
    Example:
        >>> graph = khop.open_graph("debian")
        >>> sampler = khop.SaintSampler(graph, khop.SaintEdges(size=2000), layers=2)
    """

    Options: ClassVar[type] = SaintSizeOptions

    size: int

    @classmethod
    def build(cls, options: SaintSizeOptions, context: SamplerInputs) -> SaintSampler:
        """Make the sampler of a run."""
        return options.sampler(cls(options.subgraph_draws), context)

    def __post_init__(self) -> None:
        checked_field(self, "size", whole_number, 1, MOST // 2)

    @property
    def first(self) -> DrawnNegatives:
        """The destinations of the edges, uniform."""
        return UniformNegatives(self.size)

    @property
    def steps(self) -> int:
        """One: to a neighbor of each."""
        return 1

    @property
    def most_nodes(self) -> int:
        """Two for each draw."""
        return 2 * self.size


@dataclass(frozen=True)
class SaintWalks:
    """GraphSAINT's random walks from uniformly drawn nodes.

    A step goes to a uniformly drawn in-neighbor. A walk that reaches a node without in-edges ends there.

    Args:
        roots: Walks per subgraph.
        length: Steps of a walk.
    Raises:
        ValueError: A number is below 1, or the walks have more than 2^31 - 1 nodes.
    Example:
        >>> graph = khop.open_graph("debian")
        >>> sampler = khop.SaintSampler(graph, khop.SaintWalks(roots=1000, length=2), layers=2)
    """

    Options: ClassVar[type] = SaintWalkOptions

    roots: int
    length: int

    @classmethod
    def build(cls, options: SaintWalkOptions, context: SamplerInputs) -> SaintSampler:
        """Make the sampler of a run."""
        return options.sampler(cls(options.walk_roots, options.walk_length), context)

    def __post_init__(self) -> None:
        checked_field(self, "roots", whole_number, 1, MOST)
        checked_field(self, "length", whole_number, 1, 1 << 20)
        whole_number("roots * (length + 1)", self.most_nodes, 1, MOST)

    @property
    def first(self) -> DrawnNegatives:
        """The nodes at which walks start, uniform."""
        return UniformNegatives(self.roots)

    @property
    def steps(self) -> int:
        """The length of the walks."""
        return self.length

    @property
    def most_nodes(self) -> int:
        """All nodes of all walks, if no two are the same."""
        return self.roots * (self.length + 1)


SaintDraw = SaintNodes | SaintEdges | SaintWalks  # draws of the nodes of a subgraph


def drawn_nodes(
    graph: GraphStore, edge_type: EdgeType, draw: SaintDraw, positions: Tensor, key: DrawKey
) -> Tensor:
    """Return the nodes drawn for each subgraph, with repeats: int64 (subgraphs, nodes), global ids.

    The draws of a subgraph depend on the key and on its position. A walk is a frontier of one node in a
    separate tree, with fanout 1. Collective if the graph is.
    """
    nodes = graph.sample_negatives(edge_type, draw.first, Positives(positions * 0, positions), key)
    visited = [nodes]
    count = nodes.shape[1]
    walkers = (positions[:, None] * count + torch.arange(count)).view(-1)
    at = nodes.reshape(-1)
    for step in range(1, draw.steps + 1):
        at = stepped(graph, edge_type, Frontier(at, tree=walkers), step, key)
        visited.append(at.view(nodes.shape))
    return torch.cat(visited, dim=1)


def stepped(graph: GraphStore, edge_type: EdgeType, walkers: Frontier, step: int, key: DrawKey) -> Tensor:
    """Move each walker to a uniformly drawn in-neighbor, if it has in-edges. int64 (walkers)."""
    hop = Hop(step, {edge_type: 1}, UNIFORM, edge_ids=False)
    found = graph.sample_hop({edge_type[2]: walkers}, hop, key)[edge_type]
    moved = walkers.nodes.clone()
    moved[found.offsets.diff() > 0] = found.nodes.long()
    return moved


_NODES_AT_ONCE = 1 << 18  # of the presampled subgraphs of one hop


@dataclass(frozen=True)
class SaintCounts:
    """The numbers of presampled subgraphs that contain each node and each edge."""

    subgraphs: int
    nodes: Tensor  # int64 (nodes)
    edges: Tensor  # int32 (edges), by position in the graph's CSC order


class SaintSampler(SamplerBase):
    """GraphSAINT's sampler: a group is one subgraph, induced by the nodes that `draw` returns.

    The seeds of a loader are the nodes with a loss. A step takes `batch_size` subgraphs; its loss is the mean
    loss of the groups.

    Before the first epoch, subgraphs are drawn under a separate key (`Purpose.PRESAMPLE`, `seed`). Let C_v
    and C_uv be the numbers of these subgraphs that contain node v and edge uv. Edges are weighted by C_v /
    C_uv = 1 / alpha, times the weight of the rule (1 / in-degree for `Uniform()`). The losses of nodes are
    weighted by 1 / lambda = subgraphs / C_v. A count of 0 is treated as 1. Every rank draws all of these
    subgraphs; the counts take 4 bytes per edge and 8 per node.

    The nodes are of one type, with edges of one type among them. Zeng et al., arXiv 1907.04931.

    Args:
        graph: Graph with one edge type, between nodes of one type.
        draw: Draw of the nodes: `SaintNodes`, `SaintEdges` or `SaintWalks`.
        layers: Number of blocks; each is the whole subgraph.
        groups_per_epoch: Subgraphs per epoch; by default the number of nodes of the graph, divided by the
            maximum number of nodes of a subgraph.
        coverage: Number of presampled nodes, divided by the number of nodes of the graph; default 50.
        seed: Seed of the presampled subgraphs, default 0.
        rule: Rule that determines the weights of neighbors, `Uniform()` by default.
    Raises:
        ValueError: The graph has several edge types, or nodes of two types.
    Example:
        >>> nodes, ends = {"item": khop.NodeTable(50)}, (torch.arange(300) % 50, torch.arange(300) * 7 % 50)
        >>> edges = {"item to item": khop.EdgeTable(*ends)}
        >>> graph = khop.open_graph(khop.write_graph(tmp / "graph", nodes, edges))
        >>> sampler = khop.SaintSampler(graph, khop.SaintWalks(roots=5, length=2), layers=2)
        >>> khop.Loader(sampler, "all", batch_size=2).batch(epoch=0, step=0).sample.num_groups
        2
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
        rule: Rule = UNIFORM,
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
        """Groups, each of which is one subgraph."""
        return GROUPS

    def needs(self, seed_types: Collection[NodeType | EdgeType]) -> tuple[Need, ...]:
        """Return the arrays that nodes are drawn from, and those of the rule."""
        return (NegativeNeed(self._edge_type, self.draw.first), *self._subgraphs.needs)

    def groups(self, nodes: Mapping[NodeType, Tensor]) -> GroupSeeds:
        """Return the subgraphs of an epoch, after presampling. Collective if the graph is."""
        targets = {t: ids.unique() for t, ids in nodes.items()}
        settings = f"{self.draw}:{self._coverage}:{self._seed}:{self.counts.subgraphs}"
        return GroupSeeds("subgraphs", self._groups_per_epoch, 1, targets, settings)

    @cached_property
    def counts(self) -> SaintCounts:
        """The presampled subgraphs, drawn on first use. Collective if the graph is."""
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
