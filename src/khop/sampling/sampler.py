"""Protocol of samplers, and the neighbor sampler: one loop over hops for any graph store and schema."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NoReturn, Protocol, Self

import torch
from torch import Tensor

from khop.arguments import as_mapping, check_word, graph_of, list_of, shown, truth, whole, whole_number
from khop.batch import Adjacency, Block, LinkRows, Sample, Subgraph
from khop.draw import DrawKey, FrontierByType, Neighbors, NeighborsByType
from khop.errors import Unsupported
from khop.graph.added_edges import Topology, visit_probabilities
from khop.graph.needs import Need
from khop.graph.rule import FrontierField, Hop, Rule, check_rule, reads_times
from khop.graph.store import DrawHop, GraphStore
from khop.kernels.memory import pooled_on
from khop.sampling.node_set import NodeSet, NodeSetPool, PathSet, TreeSet
from khop.sampling.outputs import (
    ROWS_AT_ONCE,
    Output,
    bidirectional,
    check_output,
    counted_degrees,
    degree_hop,
    induced,
    normalized,
)
from khop.sampling.rules.uniform import UNIFORM
from khop.sampling.seeds import GROUPS, NODES, SeedKind, Seeds, check_ids
from khop.schema import EdgeType, NodeType, Schema

if TYPE_CHECKING:
    from khop.sampling.seeds import GroupSeeds


Numbers = Mapping[EdgeType | str, int]
# -1 = all neighbors, 0 = none. For mappings see `fanout_by_type`.
Fanout = int | Numbers | Mapping[EdgeType, int] | Mapping[str, int]


def fanout_by_type(schema: Schema, fanout: Fanout) -> dict[EdgeType, int]:
    """Return a hop's fanout for every edge type, in schema order.

    A mapping's keys are edge types or patterns of edge types: `"user buys item"`, `"user * item"`, `"*"`.
    The exact name of an edge type takes precedence, then the first pattern that matches. ValueError names an
    edge type without a fanout, or a key that applies to no edge type.
    """
    named: Numbers = as_mapping(fanout, lambda number: {"*": number})
    keys = {edge_type: _key(named, edge_type) for edge_type in schema.edge_types}
    there = ", ".join(f'"{" ".join(edge_type)}"' for edge_type in schema.edge_types)
    used = set(keys.values())
    for key in named if schema.edge_types else ():
        if key not in used:
            others = isinstance(key, str) and _fitting(key, schema)
            why = "comes after what fits the same edge types" if others else f"fits no edge type of {there}"
            raise ValueError(f"fanout {named[key]!r} for {key!r}: {why}; leave it out or correct it")
    return {edge_type: _checked(named, key, edge_type) for edge_type, key in keys.items()}


def fanouts_by_type(schema: Schema, fanouts: Sequence[Fanout]) -> tuple[dict[EdgeType, int], ...]:
    """Return every hop's fanout by edge type; ValueError unless `fanouts` is a list with an entry per hop."""
    example = '[10, {"user buys item": 5, "*": 2}], an entry per hop, the seeds\' first'
    hops = list_of("fanouts", fanouts, example)
    return tuple(fanout_by_type(schema, fanout) for fanout in hops)


def followed_types(schema: Schema, fanouts: Sequence[Fanout]) -> tuple[EdgeType, ...]:
    """Return the edge types that at least one hop draws from, in schema order."""
    hops = fanouts_by_type(schema, fanouts)
    return tuple(t for t in schema.edge_types if any(hop[t] for hop in hops))


def _key(named: Numbers, edge_type: EdgeType) -> EdgeType | str | None:
    """Return the key that gives the fanout of an edge type."""
    words = " ".join(edge_type)
    for own in (edge_type, words):
        if own in named:
            return own
    return next((key for key in named if isinstance(key, str) and fnmatchcase(words, key)), None)


def _fitting(pattern: str, schema: Schema) -> bool:
    return any(fnmatchcase(" ".join(edge_type), pattern) for edge_type in schema.edge_types)


def _checked(named: Numbers, key: EdgeType | str | None, edge_type: EdgeType) -> int:
    if key is None:
        raise ValueError(
            f"no fanout for {edge_type}: name it (0 draws none of it), or give '*' a number, which is for "
            "all that are not named"
        )
    number = whole(named[key])
    if number is None or number < -1:
        raise ValueError(
            f"fanout {shown(named[key])} for {edge_type}: must be 0 or more, or -1 for all neighbors"
        )
    return number


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
    """A sampler of neighborhoods: implementers draw a sample for seeds and a key.

    They have the attributes `graph`, from which samples are drawn, and `rule`, which selects neighbors. Exact
    evaluation weights all neighbors so that it computes what the rule estimates. Custom samplers subclass
    `SamplerBase`.

    Example:
        >>> def layers_of(sampler: khop.Sampler) -> int | None:
        ...     return sampler.num_layers
        >>> layers_of(khop.NeighborSampler(khop.open_graph("debian"), [10, 5]))
        2
    """

    graph: GraphStore  # samples are drawn from it
    rule: Rule  # neighbors are drawn by it; exact evaluation weighs all neighbors by what it estimates

    @property
    def num_layers(self) -> int | None:
        """Number of blocks in a sample, one per layer of a model; None (default): samples have no layers."""
        return None

    @property
    def seed_kinds(self) -> frozenset[SeedKind]:
        """The kinds of seeds that `sample` takes, by default nodes."""
        return NODES

    @abstractmethod
    def sample(self, seeds: Seeds, key: DrawKey) -> Sample:
        """Return the blocks (and, with the subgraph expansion, the subgraph) that reach the seeds.

        A pure function of its arguments, called from several threads at once. Edges may have weights.
        With `Sample.loss_weights`, seeds count differently in the loss; their total is equal on all
        ranks.

        Args:
            seeds: Seeds of a batch.
            key: Key of the draws.
        """
        ...

    def groups(self, nodes: Mapping[NodeType, Tensor]) -> GroupSeeds:
        """Return the groups of an epoch; Unsupported without groups.

        The loader calls it once, outside lanes. Collective if the graph is.

        Args:
            nodes: Seed nodes of the epoch, int64 global ids by type.
        """
        ...

    def needs(self, seed_types: Collection[NodeType | EdgeType]) -> tuple[Need, ...]:
        """Return the arrays that samples need, by default none; `GraphStore.prepare` builds them.

        Args:
            seed_types: Node types and edge types of the seeds.
        """
        return ()

    def visits(self, seeds: Mapping[NodeType, Tensor], share: int) -> Mapping[NodeType, Tensor] | None:
        """Return the probability that a batch contains a node: float64 (nodes) by node type.

        None (default) if the probabilities are unknown: khop then counts the nodes of sampled batches.

        Args:
            seeds: Seed nodes of the epoch, int64 (n) global ids by type.
            share: Number of seeds in a batch.
        """
        return None

    def with_threads(self, threads: int) -> Sampler:
        """Return a sampler of the same bits with several threads for each sample; default: this one.

        Args:
            threads: Maximum number of threads.
        """
        return self

    def for_evaluation(
        self, graph: GraphStore, fanouts: Sequence[Fanout], *, edge_ids: bool
    ) -> Sampler | None:
        """Return a sampler of nodes with other fanouts and with the other settings of this one.

        None (default): evaluation uses a `NeighborSampler` with its default settings.

        Args:
            graph: Graph to sample.
            fanouts: Fanouts of the hops.
            edge_ids: True if samples need the ids of edges.
        """
        return None

    @property
    def exact_fanouts(self) -> Sequence[Fanout] | None:
        """Fanouts of exact evaluation per layer: -1, all neighbors, along edge types that samples follow.

        Rules such as TopK take their own fanouts: `RuleBase.exact_fanout`. None (default): -1 along all.
        """
        return None

    @property
    def averaged_types(self) -> frozenset[EdgeType]:
        """Edge types for which samples average a few neighbors, and exact evaluation all; default none."""
        return frozenset()

    def settings(self) -> Mapping[str, object]:
        """Return the arguments, except the graph, that make the same sampler on a server; or Unsupported.

        Values are numbers, text, lists, mappings, and frozen dataclasses of them, such as rules.
        """
        ...

    def for_kernels(self) -> KernelSampler:
        """Return the same sampler in a form that GPU kernels can execute; or Unsupported."""
        ...


class SamplerBase(Sampler):
    """Base of custom samplers: a subclass writes `sample`, a pure function of (seeds, key).

    `sample` is called from several threads at once. The other members have defaults.

    Args:
        graph: Graph to sample.
    Raises:
        ValueError: `graph` is not a graph.
    Example:
        >>> class Halved(khop.SamplerBase):
        ...     num_layers = 2
        ...
        ...     def sample(self, seeds, key):
        ...         return khop.NeighborSampler(self.graph, [8, 4]).sample(seeds, key)
        >>> sampler = Halved(khop.open_graph("debian"))
        >>> len(khop.Loader(sampler, range(10), batch_size=10).batch(epoch=0, step=0).blocks)
        2
    """

    def __init__(self, graph: GraphStore) -> None:
        graph_of("graph", graph)
        self.graph = graph
        self.rule: Rule = UNIFORM

    def groups(self, nodes: Mapping[NodeType, Tensor]) -> GroupSeeds:
        """Raise Unsupported: the sampler takes seeds, not groups of them."""
        raise Unsupported(f"{type(self).__name__}: makes no groups of seeds; take khop.ClusterSampler(...)")

    def settings(self) -> Mapping[str, object]:
        """Raise Unsupported: servers make this sampler only if it states its arguments."""
        raise Unsupported(
            f"{type(self).__name__}: states no arguments from which a server could make it; give the class a "
            "method settings() that returns them, and start servers with `khop serve --module` of its file"
        )

    def for_kernels(self) -> KernelSampler:
        """Raise Unsupported: by default, a custom sampler does not run on a GPU."""
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


def check_seed_kind(sampler: Sampler, kind: SeedKind) -> None:
    """Raise ValueError if the sampler does not take seeds of this kind."""
    makes_groups = kind == "nodes" and sampler.seed_kinds == GROUPS  # the loader makes groups of the nodes
    if kind not in sampler.seed_kinds and not makes_groups:
        remedy = "give khop.LinkSampler(graph, fanouts)" if kind == "links" else "give seeds of these kinds"
        raise ValueError(
            f"sampler {type(sampler).__name__} takes seeds that are {sorted(sampler.seed_kinds)}, and these "
            f"seeds are {kind}: {remedy}"
        )


# Neighborhoods of the seeds of a batch: nodes that several seeds reach are one row; each seed has a tree.
Trees = Literal["merged", "disjoint"]
Counts = Mapping[NodeType, int]
Draw = Callable[[int, FrontierByType], NeighborsByType]  # hop number, frontier -> its in-edges


class Expansion(StrEnum):
    """Nodes that a hop expands.

    Example:
        >>> graph = khop.open_graph("debian")
        >>> sampler = khop.NeighborSampler(graph, [3, 3], expansion=khop.Expansion.SUBGRAPH)
        >>> sampler.expansion
        <Expansion.SUBGRAPH: 'subgraph'>
    """

    LAYERED = "layered"
    """All nodes so far: a layer's value of a node depends on (key, layer, node) alone."""
    SUBGRAPH = "subgraph"
    """The nodes found by the last hop: each node is expanded once, and the batch is one graph."""

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        raise ValueError(f"expansion {value!r}: must be one of {[str(expansion) for expansion in cls]}")


class NeighborSampler(SamplerBase):
    """Sampler of in-neighbors over several hops.

    Hop i + 1 draws up to `fanouts[i]` in-neighbors per node and edge type; hop 1 is at the seeds. Samples
    are a pure function of (graph, settings, seeds, key). Any number of threads may share one sampler.

    Args:
        graph: Graph to sample.
        fanouts: Neighbors per hop; -1 takes all, 0 none. A fanout is one number for all edge types, or a
            mapping from edge types or patterns to numbers, such as
            `{("user", "buys", "item"): 5, "*": 2}`.
        rule: Sampling rule, `Uniform()` by default. A model of `khop.models` needs `model.rule`.
        expansion: "layered" (default), one block per hop, or "subgraph", one graph; see `Expansion`.
        edge_ids: Return the ids of edges, which edge columns need; default False.
        trees: "merged" (default), or "disjoint": every seed has a separate tree, nodes are unique within
            a tree, and duplicate seeds have a row each. `Temporal` implies "disjoint".
        output: Edges of a subgraph: "directional" (default), "bidirectional" or "induced"; see `Output`.
    Raises:
        ValueError: The fanouts or the rule do not fit the graph, or settings exclude each other.
    Example:
        >>> graph = khop.open_graph("debian")
        >>> sampler = khop.NeighborSampler(graph, fanouts=[10, 5])
        >>> len(khop.Loader(sampler, range(64), batch_size=64).batch(epoch=0, step=0).blocks)
        2
    """

    def __init__(
        self,
        graph: GraphStore,
        fanouts: Sequence[Fanout],
        *,
        rule: Rule = UNIFORM,
        expansion: Expansion = Expansion.LAYERED,
        edge_ids: bool = False,
        trees: Trees = "merged",
        output: Output = Output.DIRECTIONAL,
    ) -> None:
        super().__init__(graph)
        check_rule(rule, graph.schema)
        edge_ids = truth("edge_ids", edge_ids)
        check_word("trees", trees, Trees)
        self.expansion = Expansion(expansion)
        self.fanouts = tuple(fanouts_by_type(graph.schema, fanouts))  # of every hop, by edge type
        self.hops = tuple(
            Hop(number, of_hop, rule, edge_ids) for number, of_hop in enumerate(self.fanouts, start=1)
        )
        self.degree_hop = degree_hop(rule, graph.schema, len(self.hops) + 1)
        self.rule = rule
        self._trees: Trees = "disjoint" if reads_times(rule) else trees
        self.is_disjoint = self._trees == "disjoint"
        if self.is_disjoint and FrontierField.TREE not in rule.frontier_fields:
            raise ValueError(f"{rule}: does not draw for disjoint trees; leave trees out")
        self.output = Output(output)
        check_output(self.output, graph.schema)
        if self.output is not Output.DIRECTIONAL and self.expansion is not Expansion.SUBGRAPH:
            raise ValueError(f"output {self.output} with blocks per layer: give expansion=Expansion.SUBGRAPH")
        if rule.has_times and self.output is not Output.DIRECTIONAL:
            raise ValueError(
                f"output {self.output} with {rule}: reversed edges have no elapsed time; use directional"
            )
        self._node_sets: NodeSetPool[NodeSet | TreeSet | PathSet] = NodeSetPool(
            graph, PathSet if rule.has_paths else TreeSet if self.is_disjoint else NodeSet
        )
        self._draws = _Draws()
        weighs = any(rule.has_weights(fanout) for of_hop in self.fanouts for fanout in of_hop.values())
        if self.output is Output.INDUCED and weighs:
            raise ValueError(
                f"output {self.output} with {rule}: edges that are not drawn have no weights; "
                "use directional or bidirectional"
            )
        if self.output is Output.INDUCED and self.is_disjoint:
            raise ValueError(
                f"output {self.output} of disjoint trees: edges among all nodes would cross trees; "
                "use directional or bidirectional"
            )

    @property
    def num_layers(self) -> int:
        """Number of blocks in a sample: one per hop."""
        return len(self.hops)

    @property
    def exact_fanouts(self) -> Sequence[Fanout]:
        """Fanouts of exact evaluation along the edge types that each hop follows, by the rule."""
        exact, schema = self.rule.exact_fanout, self.graph.schema
        return [{t: exact(schema, t, f) if f else 0 for t, f in of_hop.items()} for of_hop in self.fanouts]

    @property
    def averaged_types(self) -> frozenset[EdgeType]:
        """Edge types for which samples average a few neighbors, and exact evaluation averages all.

        None within time limits: there is no exact evaluation then.
        """
        rule, schema = self.rule, self.graph.schema
        limited = {(t, f) for of_hop in self.fanouts for t, f in of_hop.items() if f > 0}
        return frozenset(
            edge_type
            for edge_type, fanout in limited
            if not reads_times(rule)
            and not rule.has_weights(fanout)
            and rule.exact_fanout(schema, edge_type, fanout) != fanout
        )

    def settings(self) -> Mapping[str, object]:
        """Return the arguments except the graph."""
        return {
            "fanouts": self.fanouts,
            "rule": self.rule,
            "expansion": self.expansion,
            "edge_ids": any(hop.edge_ids for hop in self.hops),
            "trees": self._trees,
            "output": self.output,
        }

    def for_kernels(self) -> KernelSampler:
        """Return this sampler: its seeds are nodes already."""
        return KernelSampler(self, PlantedSeeds)

    def for_evaluation(
        self, graph: GraphStore, fanouts: Sequence[Fanout], *, edge_ids: bool
    ) -> NeighborSampler:
        """Return a sampler with other fanouts and the same rule, expansion, trees and output.

        Args:
            graph: Graph to sample.
            fanouts: Fanouts of the hops.
            edge_ids: True if samples need the ids of edges.
        """
        return NeighborSampler(
            graph,
            fanouts,
            rule=self.rule,
            expansion=self.expansion,
            edge_ids=edge_ids,
            trees=self._trees,
            output=self.output,
        )

    def needs(self, seed_types: Collection[NodeType | EdgeType]) -> tuple[Need, ...]:
        """Return the arrays that draws by the rule need, for the edge types that hops follow."""
        followed = dict.fromkeys(t for of_hop in self.fanouts for t, fanout in of_hop.items() if fanout)
        counted = () if self.degree_hop is None else self.degree_hop.fanouts
        return (
            *(need for edge_type in followed for need in self.rule.needs(edge_type)),
            *(need for t in counted if t not in followed for need in self.rule.needs(t)),
        )

    def visits(self, seeds: Mapping[NodeType, Tensor], share: int) -> Mapping[NodeType, Tensor] | None:
        """Return the probability that a batch contains a node, from all edges; see `visit_probabilities`.

        None if the rule does not draw uniformly, or if this process lacks some of the edges.
        """
        if not self.rule.is_uniform:
            return None
        try:
            topology = Topology.of_store(self.graph)
        except Unsupported:
            return None
        return visit_probabilities(topology, seeds, share, self.fanouts)

    def with_threads(self, threads: int) -> Self:
        """Return a copy that draws each sample with several threads: the same bits, sooner.

        Use it when one sample is waited for. To draw many samples, one thread per sample costs less in
        all.

        Args:
            threads: Maximum number of threads.
        """
        threads = whole_number("threads", threads, 1)
        sampler = copy(self)
        sampler.hops = tuple(replace(hop, threads=threads) for hop in self.hops)
        if self.degree_hop is not None:
            sampler.degree_hop = replace(self.degree_hop, threads=threads)
        return sampler

    def sample(self, seeds: Seeds, key: DrawKey, *, view: GraphStore | None = None) -> Sample:
        """Sample the seeds' neighborhood. Duplicate seeds share one row; local ids are in first-seen order.

        A hop visits edge types in schema order, destinations in local order and neighbors in drawn order.

        Args:
            seeds: Seeds of a batch.
            key: Key of the draws.
            view: View of the graph to draw from: same types and nodes, possibly fewer edges. Default: the
                graph.
        """
        view = self.graph if view is None else view
        draws = self._draws.of(view, self.hops) if view is self.graph else view.for_hops(self.hops)

        def draw(hop: int, frontier: FrontierByType) -> NeighborsByType:
            return draws(frontier, self.hops[hop - 1], key)

        check_known(self._node_sets.num_nodes, seeds.nodes)
        check_times(seeds, self.rule)
        with self._node_sets.lend() as node_set:
            sample = expand(seeds, draw, self.num_layers, self.expansion, node_set)
            if self.degree_hop is not None:
                # Of the graph: the links of a step, which `view` may leave out, count too.
                counter = self.graph.for_hops([self.degree_hop])
                nodes = node_set.frontier(dict.fromkeys(node_set.counts(), 0))
                sample = normalized(sample, counted_degrees(nodes, counter, self.degree_hop, key))
            if isinstance(node_set, NodeSet) and self.output is Output.INDUCED:
                # Hops are collective: all ranks must make the same number of them. So each makes one.
                most = max(1, *(ids.numel() for ids in sample.nodes.values()))
                at_once = most if self.graph.is_collective else ROWS_AT_ONCE
                return induced(view, node_set, sample, at_once)
        return bidirectional(sample) if self.output is Output.BIDIRECTIONAL else sample


class _Draws:
    """The function that draws the hops of a graph, found at the first sample and not pickled."""

    def __init__(self) -> None:
        self._found: tuple[GraphStore, DrawHop] | None = None

    def of(self, graph: GraphStore, hops: Sequence[Hop]) -> DrawHop:
        """Return what `graph.for_hops` gives; it does not depend on the threads of the hops."""
        found = self._found
        if found is None or found[0] is not graph:
            found = self._found = (graph, graph.for_hops(hops))
        return found[1]

    def __reduce__(self) -> tuple[type[_Draws], tuple[()]]:
        return _Draws, ()


def check_timeless(rule: Rule) -> None:
    """Raise ValueError for a rule that needs times, which evaluation does not give."""
    if reads_times(rule):
        raise ValueError(
            f"the loader samples by {rule}, and evaluation gives nodes no times: give a khop.SeedTable with "
            "the times of the nodes"
        )


def check_seeds(graph: GraphStore, nodes: Mapping[NodeType, Tensor]) -> None:
    """Raise ValueError unless all seeds are nodes of the graph."""
    check_known({node_type: graph.num_nodes(node_type) for node_type in graph.schema.node_types}, nodes)


def check_known(num_nodes: Mapping[NodeType, int], nodes: Mapping[NodeType, Tensor]) -> None:
    """Raise ValueError unless all seeds are nodes of a graph with these numbers of nodes."""
    for node_type, ids in nodes.items():
        if node_type not in num_nodes:
            raise ValueError(f"seeds of {node_type!r}: not a node type; there are {tuple(num_nodes)}")
        check_ids(f"seeds of {node_type!r}", ids, num_nodes[node_type])


def check_times(seeds: Seeds, rule: Rule) -> None:
    """Raise ValueError unless seeds have time limits exactly if the rule reads them."""
    if not reads_times(rule):
        if seeds.times is not None:
            raise ValueError(
                f"seeds have times, but {rule} ignores them: the sample would contain later "
                "edges; use khop.Temporal(column), or leave the times out"
            )
        return
    for node_type, ids in seeds.nodes.items():
        times = (seeds.times or {}).get(node_type)
        if times is None:
            raise ValueError(
                f"seeds of {node_type!r} have no times, which {rule} needs: give the loader seed_times=..."
            )
        if times.dtype != torch.int64 or times.shape != ids.shape:
            raise ValueError(
                f"times of {node_type!r} are {times.dtype} of shape {tuple(times.shape)}: give int64, "
                f"one for each of {ids.numel()} seeds"
            )


def expand(
    seeds: Seeds, draw: Draw, num_hops: int, expansion: Expansion, node_set: NodeSet | TreeSet | PathSet
) -> Sample:
    """Expand the seeds by `num_hops` rounds of `draw`. `node_set` is empty and has every node type.

    Every hop asks for all node types, also types without nodes, so that a store gets the same calls for
    every batch.
    """
    if seeds.links is not None:
        raise ValueError("these seeds are links, which are sampled by khop.LinkSampler(graph, fanouts)")
    nothing = dict.fromkeys(node_set.counts(), 0)
    seed_index = node_set.plant(seeds)
    drawn: list[_DrawnHop] = []
    first = nothing
    for number in range(1, num_hops + 1):
        dst_counts = node_set.counts()
        frontier = node_set.frontier(start=first)
        neighbors = draw(number, frontier)
        indices = node_set.reach(neighbors)
        src_counts = node_set.counts()
        rows = {
            t: Adjacency(
                *(found.offsets, indices[t], src_counts[t[0]], found.edges),
                weight=found.weights,
                elapsed=_elapsed(found, frontier[t[2]].until),
            )
            for t, found in neighbors.items()
        }
        drawn.append(_DrawnHop(rows, first, dst_counts, src_counts))
        first = dst_counts if expansion is Expansion.SUBGRAPH else nothing
    nodes, trees = node_set.nodes_and_trees()
    if expansion is Expansion.LAYERED:
        blocks = tuple(Block(hop.rows, hop.src_counts, hop.dst_counts) for hop in reversed(drawn))
        return Sample(nodes, blocks, seed_index, trees=trees)
    subgraph = _join(drawn, node_set.counts())
    return Sample(nodes, subgraph.blocks(), seed_index, subgraph, trees=trees)


def _elapsed(found: Neighbors, until: Tensor | None) -> Tensor | None:
    """Return the limit of each edge's row minus the time of the edge, if the rule gives times."""
    if found.times is None:
        return None
    assert until is not None  # rules with times read limits
    return found.by_row(until) - found.times


@dataclass(frozen=True)
class _DrawnHop:
    rows: Mapping[EdgeType, Adjacency]  # of local ids `first` to `dst_counts`
    first: Counts
    dst_counts: Counts
    src_counts: Counts


def _join(drawn: Sequence[_DrawnHop], counts: Counts) -> Subgraph:
    """Concatenate the hops' rows. Frontiers follow each other, so rows are in local order."""
    edge_types = dict.fromkeys(edge_type for hop in drawn for edge_type in hop.rows)
    edges_per_hop = {t: tuple(_num_edges(hop, t) for hop in drawn) for t in edge_types}
    levels = [*(hop.dst_counts for hop in drawn), counts]
    nodes_per_hop = {
        t: (levels[0][t], *(later[t] - earlier[t] for earlier, later in pairwise(levels))) for t in counts
    }
    return Subgraph({t: _join_rows(drawn, t, counts) for t in edge_types}, nodes_per_hop, edges_per_hop)


def _num_edges(hop: _DrawnHop, edge_type: EdgeType) -> int:
    return hop.rows[edge_type].indices.numel() if edge_type in hop.rows else 0


def _join_rows(drawn: Sequence[_DrawnHop], edge_type: EdgeType, counts: Counts) -> Adjacency:
    source, _, destination = edge_type
    pieces = [(hop.first[destination], hop.rows[edge_type]) for hop in drawn if edge_type in hop.rows]
    # Pooled memory: fresh pages for 640,000 edges cost a fifth of drawing them. The kernel serves page
    # faults to one thread of a process at a time.
    device = pieces[0][1].indptr.device
    indptr = pooled_on(device, (counts[destination] + 1,), torch.int64)
    num_edges, end = 0, 0
    for first, piece in pieces:
        indptr[end:first] = num_edges
        torch.add(piece.indptr, num_edges, out=indptr[first : first + piece.num_dst + 1])
        num_edges, end = num_edges + piece.indices.numel(), first + piece.num_dst + 1
    indptr[end:] = num_edges
    indices = torch.cat(
        [piece.indices for _, piece in pieces], out=pooled_on(device, (num_edges,), torch.int32)
    )
    edge_ids, elapsed = (
        torch.cat(of_hops, out=pooled_on(device, (num_edges,), torch.int64)) if of_hops else None
        for of_hops in (
            [piece.edge_ids for _, piece in pieces if piece.edge_ids is not None],
            [piece.elapsed for _, piece in pieces if piece.elapsed is not None],
        )
    )
    weight = None
    if any(piece.weight is not None for _, piece in pieces):
        weights = [_mean_weights(piece) if piece.weight is None else piece.weight for _, piece in pieces]
        weight = torch.cat(weights, out=pooled_on(device, (num_edges,), torch.float32))
    return Adjacency(indptr, indices, counts[source], edge_ids, weight=weight, elapsed=elapsed)


def _mean_weights(rows: Adjacency) -> Tensor:
    """Return weights that average the drawn edges of each row, if other hops have weights."""
    counts = rows.indptr.diff()
    return torch.repeat_interleave(counts.double().reciprocal().float(), counts)
