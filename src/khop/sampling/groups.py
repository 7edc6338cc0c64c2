"""Groups of seeds that share a subgraph: their distribution over ranks, and the edges within each group.

The loss of a step is the mean over its groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from khop.arguments import whole_number
from khop.batch import Adjacency, LossWeights, Sample, Subgraph
from khop.draw import DrawKey, Frontier, Neighbors
from khop.graph.rule import Hop, Rule, check_rule, reads_times
from khop.graph.store import GraphStore
from khop.sampling.node_set import NodeSetPool, TreeSet
from khop.sampling.outputs import counted_degrees, degree_hop, normalized
from khop.sampling.rules.uniform import UNIFORM
from khop.sampling.sampler import Sampler
from khop.sampling.seed_table import SeedTable
from khop.sampling.seeds import GROUPS, GroupSeeds, GroupShare, NodeSeeds, NodeTuples, SeedList, Seeds
from khop.schema import EdgeType, NodeType

KEY = DrawKey(0)  # all in-edges are taken: nothing is drawn


@dataclass(frozen=True)
class Members:
    """The nodes of the groups of a batch, of one type: group after group, unique within a group."""

    nodes: Tensor  # int64 (n), global ids
    offsets: Tensor  # int64 (groups + 1)

    @property
    def groups(self) -> Tensor:
        """int64 (n), the number of each node's group in the batch."""
        return torch.repeat_interleave(self.offsets.diff())


@dataclass(frozen=True)
class GroupEdges:
    """Edges of one type among the nodes of each group, before they become an adjacency."""

    rows: Tensor  # int64 (edges), the destinations' positions in the members
    destinations: Tensor  # int64 (edges), global ids
    degrees: Tensor  # int64 (members), the in-edges of each member in the graph
    edge_ids: Tensor  # int64 (edges), positions in the graph's CSC order
    weights: Tensor | None  # float32 (edges), of the rule


Reweigh = Callable[[EdgeType, GroupEdges], Tensor | None]  # float32 (edges)


class GroupGraph:
    """The subgraphs that groups of nodes induce, with the weights of a rule.

    Edges without weights of the rule are averaged over the edges that are in the subgraph. Degrees are those
    of the graph. A sample takes one hop, or two if the rule needs degrees.
    """

    def __init__(self, graph: GraphStore, layers: int, rule: Rule) -> None:
        check_rule(rule, graph.schema)
        if reads_times(rule):
            raise ValueError(f"rule {rule}: groups have no times; give a rule without time limits")
        self.graph = graph
        self.layers = whole_number("layers", layers, 1)
        self.needs = tuple(need for edge_type in graph.schema.edge_types for need in rule.needs(edge_type))
        weighs = rule if rule.has_weights(-1) else UNIFORM
        self._hop = Hop(1, dict.fromkeys(graph.schema.edge_types, -1), weighs, edge_ids=True)
        self._degree_hop = degree_hop(rule, graph.schema, 2)
        self._sets = NodeSetPool(graph, TreeSet)

    def sample(self, members: Mapping[NodeType, Members], reweigh: Reweigh | None = None) -> Sample:
        """Return the subgraphs of all groups as one sample without seeds; blocks are the whole subgraph."""
        frontier = {t: Frontier(of_type.nodes) for t, of_type in members.items()}
        found = self.graph.sample_hop(frontier, self._hop, KEY)
        counts = {t: of_type.nodes.numel() for t, of_type in members.items()}
        with self._sets.lend() as tree_set:
            num_groups = max(of_type.offsets.numel() - 1 for of_type in members.values())
            tree_set.plant_groups({t: (of.nodes, of.offsets) for t, of in members.items()}, num_groups)
            inside = {t: tree_set.local_ids(t[0], of, members[t[2]].groups) for t, of in found.items()}
        adjacencies = {
            t: _among(_GroupHop(t, drawn, inside[t]), counts[t[0]], members[t[2]].nodes, reweigh)
            for t, drawn in found.items()
        }
        per_hop = {t: (count, *[0] * self.layers) for t, count in counts.items()}
        subgraph = Subgraph(adjacencies, per_hop, edges_per_hop=None)
        nodes = {t: of_type.nodes for t, of_type in members.items()}
        trees = {t: of_type.groups for t, of_type in members.items()}
        sample = Sample(nodes, subgraph.blocks(), {}, subgraph, trees)
        if self._degree_hop is None:
            return sample
        return normalized(sample, counted_degrees(frontier, self.graph.sample_hop, self._degree_hop, KEY))


@dataclass(frozen=True)
class _GroupHop:
    """All in-edges of the members, of one edge type."""

    edge_type: EdgeType
    found: Neighbors
    local_ids: Tensor  # int32 (edges), of the sources; those of members come first


def _among(drawn: _GroupHop, num_src: int, nodes: Tensor, reweigh: Reweigh | None) -> Adjacency:
    """Keep the edges whose source is in the group of the destination, in the order of the graph."""
    found = drawn.found
    assert found.edges is not None
    is_inside = drawn.local_ids < num_src
    rows = torch.repeat_interleave(found.offsets.diff(), output_size=found.nodes.numel())[is_inside]
    counts = torch.bincount(rows, minlength=nodes.numel())
    indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    edge_ids = found.edges[is_inside]
    weight = None if found.weights is None else found.weights[is_inside]
    if reweigh is not None:
        edges = GroupEdges(rows, nodes[rows], found.offsets.diff(), edge_ids, weight)
        weight = reweigh(drawn.edge_type, edges)
    return Adjacency(indptr, drawn.local_ids[is_inside], num_src, edge_ids, weight=weight)


def grouped(sampler: Sampler, seeds: SeedList) -> GroupSeeds | None:
    """Return the groups that a sampler makes of seed nodes; None if it takes single seeds."""
    if sampler.seed_kinds != GROUPS:
        return None
    if isinstance(seeds, SeedTable | NodeTuples):
        raise ValueError(
            f"a sampler of groups with a khop.{type(seeds).__name__}: the losses of a group are those of all "
            "its seed nodes; give only nodes as seeds, or use a khop.NeighborSampler"
        )
    if not isinstance(seeds, NodeSeeds):
        raise ValueError(
            "a sampler of groups with seeds on servers: groups are made where the graph is; open the graph "
            "in this process, or partitioned across ranks"
        )
    if seeds.times is not None:
        raise ValueError("seed_times with a sampler of groups: groups have no times; leave them out")
    return sampler.groups(seeds.nodes)


# A rank's share, a node type, and int64 (n) global ids of nodes with a loss -> float64 (n).
NodeWeights = Callable[[GroupShare, NodeType, Tensor], Tensor]


def group_share(seeds: Seeds) -> GroupShare:
    """Return the groups of the seeds; ValueError if they are nodes or links."""
    if seeds.groups is None:
        raise ValueError(
            "these seeds are not groups, which the sampler needs: give the sampler to khop.Loader, which "
            "makes groups of all seed nodes"
        )
    return seeds.groups


def with_targets(
    sample: Sample, share: GroupShare, members: Mapping[NodeType, Members], weigh: NodeWeights
) -> Sample:
    """Return the sample with the nodes of its groups that have a loss as seeds; targets are ascending."""
    index = {t: _rows_of(members[t].nodes, targets) for t, targets in share.targets.items()}
    return with_seeds(sample, share, index, weigh)


def with_seeds(
    sample: Sample, share: GroupShare, index: Mapping[NodeType, Tensor], weigh: NodeWeights
) -> Sample:
    """Return the sample with rows as seeds, int64 (seeds) by type, and with the weights of their losses.

    Weighted losses add up to the loss of a group, and the loss of the step is the mean over its groups.
    """
    weights: dict[NodeType | EdgeType, Tensor] = {
        t: weigh(share, t, sample.nodes[t][rows]) for t, rows in index.items()
    }
    loss_weights = LossWeights(weights, share.total)
    return replace(sample, seed_index=index, loss_weights=loss_weights, num_groups=share.count)


def equal_weights(share: GroupShare, node_type: NodeType, nodes: Tensor) -> Tensor:
    """Return weights with which the mean over all groups of an epoch is the mean over all seed nodes."""
    return torch.full(nodes.shape, share.num_groups / share.num_targets, dtype=torch.float64)


def _rows_of(nodes: Tensor, targets: Tensor) -> Tensor:
    """Return int64 (n): the rows with a node of `targets`, which are ascending."""
    places = torch.searchsorted(targets, nodes).clamp_(max=targets.numel() - 1)
    return (targets[places] == nodes).nonzero().view(-1) if targets.numel() else places[:0]
