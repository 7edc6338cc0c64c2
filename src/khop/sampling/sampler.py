"""Protocol between a loader and samplers: seeds in, samples out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, Self

import torch
from torch import Tensor

from khop.arguments import graph_of, shown
from khop.batch import LinkRows, Sample
from khop.draw import DrawKey
from khop.errors import Unsupported
from khop.graph.needs import Need
from khop.graph.store import GraphStore
from khop.rules.rule import Rule
from khop.rules.uniform import Uniform
from khop.sampling.fanouts import Fanout
from khop.schema import EdgeType, NodeType

if TYPE_CHECKING:
    from khop.sampling.groups import GroupSeeds
    from khop.sampling.neighbor import NeighborSampler
    from khop.sampling.seeds import StepShare

SeedKind = Literal["nodes", "links", "groups"]  # groups: the sampler makes them of all seed nodes
NODES: frozenset[SeedKind] = frozenset({"nodes"})
GROUPS: frozenset[SeedKind] = frozenset({"groups"})


@dataclass(frozen=True)
class SeedLinks:
    """Seed links of one edge type for a batch (or for a rank's share of it), duplicates allowed."""

    edges: Tensor  # int64 (2, n), global ids: sources over destinations
    positions: Tensor  # int64 (n), positions in the epoch's global order
    batch_edges: Tensor  # int64 (2, m), the links of all ranks in this step
    labels: Tensor | None = None  # (n, ...)
    times: Tensor | None = None  # int64 (n), a time limit per link
    negatives: Tensor | None = None  # int64 (n, k), global ids of the destination type
    relations: Tensor | None = None  # int64 (n), the relation of each link
    batch_relations: Tensor | None = None  # int64 (m), the relations of `batch_edges`


@dataclass(frozen=True)
class LinkSeeds:
    """Links by type, and the key for drawing their negatives."""

    by_type: Mapping[EdgeType, SeedLinks]
    negative_key: DrawKey

    @property
    def count(self) -> int:
        """Number of links of all types."""
        return sum(links.positions.numel() for links in self.by_type.values())


@dataclass(frozen=True)
class GroupShare:
    """A rank's groups of seeds in a step. A group is some elements of a list, next to each other."""

    elements: Tensor  # int64 (n), numbers in the list, group after group
    offsets: Tensor  # int64 (groups + 1), the elements of each group
    first: int  # the first group's position in the epoch's global order
    total: int  # groups of all ranks in this step
    num_groups: int  # of an epoch
    targets: Mapping[NodeType, Tensor]  # int64 (nodes), global ids of all nodes with a loss

    @property
    def count(self) -> int:
        """Number of groups of this rank."""
        return self.offsets.numel() - 1

    @property
    def positions(self) -> Tensor:
        """int64 (groups of this rank), positions in the epoch's global order; draws are keyed by them."""
        return torch.arange(self.first, self.first + self.count)

    @property
    def num_targets(self) -> int:
        """Number of nodes of all types with a loss."""
        return sum(nodes.numel() for nodes in self.targets.values())


@dataclass(frozen=True)
class Seeds:
    """Seed nodes and seed links of a batch (or of a rank's share of it), duplicates allowed."""

    nodes: Mapping[NodeType, Tensor]  # int64 (n), global ids
    positions: Mapping[NodeType, Tensor]  # int64 (n), positions (of groups) in the epoch's global order
    times: Mapping[NodeType, Tensor] | None = None  # int64 (n), a time limit per seed
    links: LinkSeeds | None = None  # for a LinkSampler
    batch_nodes: Mapping[NodeType, Tensor] | None = (
        None  # int64 (m), of all ranks in this step; None: `nodes`
    )
    listed: StepShare | None = None  # numbers in a list on servers, which look the seeds up; None: all above
    tuple_labels: Mapping[NodeType, Tensor] | None = None  # (tuples, ...), if `nodes` are those of tuples
    groups: GroupShare | None = None  # for a sampler of groups; there are no other seeds then

    @property
    def count(self) -> int:
        """Number of seeds of all types."""
        num_links = 0 if self.links is None else self.links.count
        return num_links + sum(nodes.numel() for nodes in self.nodes.values())


@dataclass(frozen=True)
class PlantedSeeds:
    """The seed nodes of a batch before the first hop, with the links that they come from."""

    seeds: Seeds  # nodes only
    links: Mapping[EdgeType, LinkRows] = field(default_factory=dict)
    excluded: Mapping[EdgeType, Tensor] = field(default_factory=dict)
    # ^ int64 (2, pairs), ends of the edges that carry no message


@dataclass(frozen=True)
class KernelSampler:
    """A sampler in two steps: seeds become nodes on the CPU, then kernels sample the neighborhoods."""

    neighbors: NeighborSampler  # over the graph on the CPU
    planted: Callable[[Seeds], PlantedSeeds]  # draws the negatives of links

    def over(self, graph: GraphStore) -> NeighborSampler:
        """Return the sampler of neighborhoods over another store of the same graph, as one on a device."""
        moved = copy(self.neighbors)
        moved.graph = graph
        return moved


class Sampler(Protocol):
    """A sampler of neighborhoods. A sampler of your own subclasses `SamplerBase`."""

    graph: GraphStore  # samples are drawn from it
    rule: Rule  # neighbors are drawn by it; exact evaluation weighs all neighbors by what it estimates

    @property
    def num_layers(self) -> int | None:
        """Number of blocks in a sample, one per layer of a model; None if samples have no layers."""
        ...

    @property
    def seed_kinds(self) -> frozenset[SeedKind]:
        """The kinds of seeds that `sample` takes."""
        ...

    @abstractmethod
    def sample(self, seeds: Seeds, key: DrawKey) -> Sample:
        """Return the blocks (and, with the subgraph expansion, the subgraph) that reach the seeds.

        A pure function of (seeds, key), called from several threads at once. Edges may have weights. With
        `Sample.loss_weights`, seeds count differently in the loss; their total is equal on all ranks.
        """
        ...

    def groups(self, nodes: Mapping[NodeType, Tensor]) -> GroupSeeds:
        """Return the groups of an epoch over seed nodes, int64 ids by type; Unsupported without groups.

        The loader calls it once, outside lanes. Collective where the graph is.
        """
        ...

    def needs(self, seed_types: Collection[NodeType | EdgeType]) -> tuple[Need, ...]:
        """Return the arrays that samples of seeds of these types need; `GraphStore.prepare` builds them."""
        ...

    def visits(self, seeds: Mapping[NodeType, Tensor], share: int) -> Mapping[NodeType, Tensor] | None:
        """Return the probability that a batch contains a node: float64 (nodes) by node type.

        A batch has `share` of the seeds, int64 (n) ids by type. None if the probabilities are unknown: then
        batches are drawn and counted.
        """
        ...

    def with_threads(self, threads: int) -> Sampler:
        """Return a sampler of the same bits that uses up to `threads` threads for each sample."""
        ...

    def for_evaluation(
        self, graph: GraphStore, fanouts: Sequence[Fanout], *, edge_ids: bool
    ) -> Sampler | None:
        """Return a sampler of nodes with these fanouts and with the other settings of this one.

        None: evaluation uses a `NeighborSampler` with its default settings.
        """
        ...

    @property
    def exact_fanouts(self) -> Sequence[Fanout] | None:
        """Fanouts of exact evaluation per layer: -1, all neighbors, along edge types that samples follow.

        Rules such as TopK take their own fanouts: `RuleBase.exact_fanout`. None: -1 along all edge types.
        """
        ...

    @property
    def averaged_types(self) -> frozenset[EdgeType]:
        """Edge types of which samples average a few neighbors, and exact evaluation all of them."""
        ...

    def settings(self) -> Mapping[str, object]:
        """Return the arguments beside the graph that make the same sampler, on a server; or Unsupported.

        Values are numbers, text, lists, mappings, and frozen dataclasses of them, such as rules.
        """
        ...

    def for_kernels(self) -> KernelSampler:
        """Return the same sampler in the form that kernels of a GPU can carry out; or Unsupported."""
        ...


class SamplerBase(Sampler):
    """A sampler of your own: a subclass writes `sample`, a pure function of (seeds, key).

    `sample` is called from several threads at once. The other members have defaults.
    """

    def __init__(self, graph: GraphStore) -> None:
        graph_of("graph", graph)
        self.graph = graph
        self.rule: Rule = Uniform()

    @property
    def num_layers(self) -> int | None:
        """Number of blocks in a sample: by default unknown."""
        return None

    @property
    def seed_kinds(self) -> frozenset[SeedKind]:
        """The kinds of seeds that `sample` takes: by default nodes."""
        return NODES

    def groups(self, nodes: Mapping[NodeType, Tensor]) -> GroupSeeds:
        """Raise Unsupported: the sampler takes seeds, not groups of them."""
        raise Unsupported(f"{type(self).__name__}: makes no groups of seeds; take khop.ClusterSampler(...)")

    def needs(self, seed_types: Collection[NodeType | EdgeType]) -> tuple[Need, ...]:
        """Return nothing: samples need no other arrays than the graph's edges."""
        return ()

    def visits(self, seeds: Mapping[NodeType, Tensor], share: int) -> Mapping[NodeType, Tensor] | None:
        """Return None: batches are drawn and counted."""
        return None

    def with_threads(self, threads: int) -> Self:
        """Return this sampler: it uses one thread for each sample."""
        return self

    def for_evaluation(
        self, graph: GraphStore, fanouts: Sequence[Fanout], *, edge_ids: bool
    ) -> Sampler | None:
        """Return None: evaluation uses a `NeighborSampler` with its default settings."""
        return None

    @property
    def exact_fanouts(self) -> Sequence[Fanout] | None:
        """None: exact evaluation follows all edge types."""
        return None

    @property
    def averaged_types(self) -> frozenset[EdgeType]:
        """Edge types of which samples average a few neighbors: by default none is known."""
        return frozenset()

    def settings(self) -> Mapping[str, object]:
        """Raise Unsupported: servers make this sampler only if it states its arguments."""
        raise Unsupported(
            f"{type(self).__name__}: states no arguments from which a server could make it; give the class a "
            "method settings() that returns them, and start servers with `khop serve --module` of its file"
        )

    def for_kernels(self) -> KernelSampler:
        """Raise Unsupported: a GPU samples as khop's own samplers do."""
        raise Unsupported(
            f"{type(self).__name__}: a GPU samples as khop.NeighborSampler and khop.LinkSampler do; leave "
            'the topology to the CPU, topology="host"'
        )


def sampler_of(value: object) -> Sampler:
    """Return the value if it is a sampler, else raise ValueError."""
    if not isinstance(value, SamplerBase):
        raise ValueError(
            f"sampler {shown(value)}: must be a khop.NeighborSampler, a khop.LinkSampler, or an instance "
            "of your own subclass of khop.SamplerBase"
        )
    return value


def checked_sampler(given: object, kind: SeedKind) -> Sampler:
    """Return the sampler; ValueError if it is none, or if it does not take seeds of this kind."""
    sampler = sampler_of(given)
    if kind == "nodes" and sampler.seed_kinds == GROUPS:
        return sampler  # the loader makes groups of the nodes
    if kind not in sampler.seed_kinds:
        remedy = "give khop.LinkSampler(graph, fanouts)" if kind == "links" else "give seeds of these kinds"
        raise ValueError(
            f"sampler {type(sampler).__name__} takes seeds that are {sorted(sampler.seed_kinds)}, and these "
            f"seeds are {kind}: {remedy}"
        )
    return sampler
