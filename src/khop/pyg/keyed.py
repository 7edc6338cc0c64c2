"""Samples for torch_geometric's loaders, as pure functions of the inputs and of keyed draws.

Batches of links count or exclude the links that are also message edges, and have negatives drawn by khop.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from operator import index
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch_geometric.sampler import EdgeSamplerInput, HeteroSamplerOutput, NegativeSampling, NodeSamplerInput
from torch_geometric.sampler.base import NumNeighbors, SubgraphType

from khop.arguments import as_mapping
from khop.draw import DrawKey, DrawnNegatives, Positives, Purpose, UniformNegatives, WeightedNegatives
from khop.graph.inputs import tensor_of
from khop.graph.rule import Rule
from khop.graph.store import CscGraph, GraphStore, csc_graph_from_edges
from khop.pyg.outputs import EDGE, NODE, Output, single
from khop.pyg.source import Directed, EdgeSource
from khop.sampling.links.exclusion import Exclude, WithoutEdges, excluded_edges
from khop.sampling.links.link_negatives import DrawnEnds, EndRows, Planted, plant_apart, plant_merged
from khop.sampling.outputs import Output as Edges
from khop.sampling.rules.temporal import Temporal, TemporalStrategy
from khop.sampling.rules.uniform import Uniform
from khop.sampling.rules.weighted import Weighted
from khop.sampling.sampler import Expansion
from khop.sampling.sampler import NeighborSampler as HopSampler
from khop.sampling.seeds import LinkSeeds, SeedLinks, Seeds
from khop.schema import EdgeType, NodeType


def named_reverse(edge_type: EdgeType, edge_types: Collection[EdgeType]) -> EdgeType | None:
    """Return the reverse type named by `ToUndirected`; within one node type, the edge type itself."""
    source, relation, destination = edge_type
    names = [f"rev_{relation}", relation.removeprefix("rev_")]
    named = next((t for name in names if (t := (destination, name, source)) in edge_types), None)
    return named if named is not None or source != destination else edge_type


def excluded_pairs(
    links: LinkSeeds, exclude: Exclude | None, edge_types: Collection[EdgeType]
) -> dict[EdgeType, Tensor]:
    """Return ends (2, pairs) of the edges to leave out, by edge type of the data."""
    reverses = {}
    if exclude is Exclude.EDGE_AND_REVERSE:
        for edge_type in links.by_type:
            reverses[edge_type] = checked_reverse(edge_type, edge_types)
    found = excluded_edges(links, exclude, reverses)
    return {edge_type: pairs for edge_type, pairs in found.items() if edge_type in edge_types}


def checked_reverse(edge_type: EdgeType, edge_types: Collection[EdgeType]) -> EdgeType:
    """Return the reverse type; ValueError if no edge type has the name of a reverse."""
    reverse = named_reverse(edge_type, edge_types)
    if reverse is None:
        raise ValueError(
            f'exclude="edge+reverse": no edge type has the name of the reverse of {edge_type}, '
            f'"rev_{edge_type[1]}"; give exclude="edge", or rename the type'
        )
    return reverse


def warn_of_supervision(output: HeteroSamplerOutput, edge_type: EdgeType, links: Tensor) -> None:
    """Warn once with the number of links (2, links) that are also edges of the output, or reverse edges."""
    carried = torch.zeros(links.shape[1], dtype=torch.bool)
    for messages in _messages(output, edge_type):
        carried |= among(links, messages)
    if bool(carried.any()):
        warnings.warn(
            f"{int(carried.sum()):,} of the {links.shape[1]:,} links of the first batch are also message "
            "edges, directly or reversed, which leaks the target. Exclude them with "
            'exclude="edge+reverse" or "edge", or split with RandomLinkSplit(disjoint_train_ratio=...); '
            "torch_geometric does not exclude them",
            stacklevel=2,
        )


class SupervisionWarning:
    """The warning of `warn_of_supervision`, given for the first batch that is checked."""

    def __init__(self, *, is_needed: bool) -> None:
        self._is_needed = is_needed

    def check(self, output: HeteroSamplerOutput, edge_type: EdgeType, links: Tensor) -> None:
        """Check a batch, unless one has been checked before."""
        if self._is_needed:
            self._is_needed = False
            warn_of_supervision(output, edge_type, links)


def _messages(output: HeteroSamplerOutput, edge_type: EdgeType) -> Iterator[Tensor]:
    """Yield message edges (2, edges) of an edge type, and swapped message edges of its reverse."""
    for t in dict.fromkeys([edge_type, named_reverse(edge_type, output.row)]):
        if t is not None and t in output.row:
            ends = torch.stack([output.node[t[0]][output.row[t]], output.node[t[2]][output.col[t]]])
            if t == edge_type:
                yield ends
            if t != edge_type or t[0] == t[2]:
                yield ends.flip(0)


def among(pairs: Tensor, others: Tensor) -> Tensor:
    """Return bool (pairs), true for pairs that are among the others; both are (2, ...) of global ids."""
    width = int(torch.cat([pairs[1], others[1]]).max()) + 1 if pairs.shape[1] and others.shape[1] else 1
    return torch.isin(pairs[0] * width + pairs[1], others[0] * width + others[1])


_TIME, _WEIGHT = "time", "weight"
_WEIGHTS = "The 'weight' attribute in 'NegativeSampling'"


@dataclass(frozen=True, eq=False)
class DrawnEnd:
    """Nodes of one type as ends of negatives: drawn uniformly or by weight, no later than the link."""

    store: CscGraph  # has times and weights; needs no edges, because draws are not exact
    edge_type: EdgeType  # an edge type into the nodes
    weights: Tensor | None
    version: int  # of the weights, because a user may change them in place

    @classmethod
    def of(cls, source: EdgeSource, edge_type: EdgeType, weights: Tensor | None) -> DrawnEnd:
        """Make the ends; ValueError unless weights are one finite number, 0 or more, per node."""
        ends = (edge_type[0], edge_type[2])
        counts = {end: source.graph.num_nodes(end) for end in ends}
        count = counts[ends[1]]
        columns = {}
        if weights is not None:
            columns[_WEIGHT] = _checked(weights, count)
        if ends[1] in source.node_times:
            columns[_TIME] = source.node_times[ends[1]]
        nothing = torch.empty(0, dtype=torch.int64)
        store = csc_graph_from_edges(counts, {edge_type: (nothing, nothing)}, columns={ends[1]: columns})
        return cls(store, edge_type, weights, _version(weights))

    def is_of(self, weights: Tensor | None) -> bool:
        """Return true if these ends were made for these weights."""
        return self.weights is weights and self.version == _version(weights)

    def drawn(
        self, per_positive: int, kept: Tensor, positions: Tensor, until: Tensor | None, key: DrawKey
    ) -> Tensor:
        """Return int64 (links, per_positive), nodes; keyed by the links' positions.

        If no node is early enough for a link, it gets the earliest node, as in torch_geometric.
        """
        rule: DrawnNegatives = UniformNegatives(per_positive)
        if self.weights is not None:
            rule = WeightedNegatives(_WEIGHT, per_positive)
        columns = self.store.columns[self.edge_type[2]]
        times = columns.get(_TIME)
        if times is None or until is None:
            return self.store.sample_negatives(self.edge_type, rule, Positives(kept, positions), key)
        drawable = times if self.weights is None else times[columns[_WEIGHT] > 0]
        first = drawable.min()
        wanted = Positives(kept, positions, until.clamp(min=int(first)), _TIME)
        drawn = self.store.sample_negatives(self.edge_type, rule, wanted, key)
        return torch.where((until < first)[:, None], times.argmin(), drawn)


def _checked(weights: Tensor, count: int) -> Tensor:
    if weights.numel() != count:
        raise ValueError(f"{_WEIGHTS} needs to match the number of nodes {count} (got {weights.numel()})")
    weights = weights.detach().cpu().view(-1)
    bad = (~((weights >= 0) & weights.isfinite())).nonzero()
    if bad.numel():
        node = int(bad[0])
        raise ValueError(
            f"{_WEIGHTS} is {weights[node].item()} for node {node}: weights are finite numbers, 0 or more"
        )
    if not bool((weights > 0).any()):
        raise ValueError(
            f"{_WEIGHTS} is 0 for all {count} nodes, so none can be "
            "drawn: give at least one weight above 0, or leave the weights out"
        )
    return weights


def _version(weights: Tensor | None) -> int:
    return -1 if weights is None else weights._version


class NegativeEnds:
    """Cached ends for which negatives are drawn, because preparing weights costs as much as many draws."""

    def __init__(self, source: EdgeSource) -> None:
        self._source = source
        self._made: dict[EdgeType, DrawnEnd] = {}

    def __call__(self, edge_type: EdgeType, weights: Any) -> DrawnEnd:
        """Return the end of an edge type for the weights of its nodes: a tensor, an array or a list."""
        end = self._made.get(edge_type)
        if not (weights is None or isinstance(weights, Tensor)):
            read, known = tensor_of(_WEIGHTS, weights), None if end is None else end.weights
            # Compared by value, because arrays and lists have no version counter as tensors have.
            weights = known if known is not None and torch.equal(known, read) else read.clone()
        if end is None or not end.is_of(weights):
            end = self._made[edge_type] = DrawnEnd.of(self._source, edge_type, weights)
        return end


EndOf = Callable[[EdgeType, Any], DrawnEnd]  # edge type into the ends, weights -> ends


@dataclass(frozen=True)
class LinkBatch:
    """The links of a batch, followed by the negatives that are separate pairs."""

    count: int  # without negatives
    edge_type: EdgeType
    seeds: SeedLinks
    times: Tensor | None  # the given times, one per pair

    @classmethod
    def of(
        cls,
        inputs: EdgeSamplerInput,
        negatives: NegativeSampling | None,
        position: int,
        key: DrawKey,
        end_of: EndOf,
    ) -> LinkBatch:
        """Make the links and draw their negatives: both ends of pairs, one end of triplets.

        A triplet's source is the source of its link. `position` is the first link's position in the epoch's
        global order.
        """
        edge_type = inputs.input_type or EDGE
        edges = torch.stack([inputs.row, inputs.col]).long()
        positions = position + torch.arange(edges.shape[1])
        until = None if inputs.time is None else inputs.time.long()
        if negatives is None:
            seeds = SeedLinks(edges, positions, edges, inputs.label, until)
            return cls(edges.shape[1], edge_type, seeds, inputs.time)
        per_positive = math.ceil(negatives.amount)
        *_, destinations = ends = drawn_ends(edge_type, negatives, end_of)
        drawn = destinations.drawn(per_positive, edges[0], positions, until, key)
        if negatives.is_triplet():
            seeds = SeedLinks(edges, positions, edges, None, until, drawn)
            return cls(edges.shape[1], edge_type, seeds, inputs.time)
        pairs = torch.stack([ends[0].drawn(per_positive, edges[1], positions, until, key), drawn])
        return cls._with_pairs(inputs, edge_type, edges, positions, pairs, negatives.amount)

    @classmethod
    def _with_pairs(
        cls,
        inputs: EdgeSamplerInput,
        edge_type: EdgeType,
        edges: Tensor,
        positions: Tensor,
        pairs: Tensor,  # int64 (2, links, k)
        amount: float,
    ) -> LinkBatch:
        """Append the first negative of every link, then the second, and so on: `amount` per link in total."""
        count, per_positive = pairs.shape[1:]
        links = edges
        number = math.ceil(count * amount)
        edges = torch.cat([edges, pairs.transpose(1, 2).flatten(1)[:, :number]], dim=1)
        slots = torch.arange(1 + per_positive)[:, None]
        positions = (positions * (1 + per_positive) + slots).flatten()[: count + number]
        labels = torch.ones(count) if inputs.label is None else inputs.label
        labels = torch.cat([labels, labels.new_zeros(number, *labels.shape[1:])])
        times = None if inputs.time is None else inputs.time.repeat(1 + per_positive)[: count + number]
        until = None if times is None else times.long()
        return cls(count, edge_type, SeedLinks(edges, positions, links, labels, until), times)

    def planted(self, key: DrawKey, *, disjoint: bool) -> Planted:
        """Return the seeds: every node once, in ascending order; with `disjoint`, every end separately."""
        seeds = Seeds({}, {}, links=LinkSeeds({self.edge_type: self.seeds}, key))
        negatives = {self.edge_type: DrawnEnds(self.seeds.negatives)}
        return plant_apart(seeds, negatives) if disjoint else plant_merged(seeds, negatives, _ascending)

    def metadata(self, input_id: Tensor, rows: EndRows) -> tuple[Tensor | None, ...]:
        """Return the values from which torch_geometric's loaders make a batch's attributes."""
        if rows.negatives is None:
            pairs = torch.stack([rows.source, rows.destination])
            return input_id, pairs, self.seeds.labels, self.times
        return input_id, rows.source, rows.destination, rows.negatives.squeeze(-1), self.times

    @property
    def of_trees(self) -> Tensor:
        """int64 (ends): the link of each end and of its tree."""
        negatives = self.seeds.negatives
        ends = [self.seeds.positions.numel()] * 2 + ([] if negatives is None else [negatives.numel()])
        return torch.cat([torch.arange(count) % max(self.count, 1) for count in ends])


def drawn_ends(edge_type: EdgeType, negatives: NegativeSampling, end_of: EndOf) -> tuple[DrawnEnd, ...]:
    """Return the ends to draw for a type's negatives: sources, if negatives are pairs, and destinations."""
    source, relation, destination = edge_type
    drawn = end_of(edge_type, negatives.dst_weight)
    if negatives.is_triplet():
        return (drawn,)
    # The type into the sources need not exist in the graph: its name makes the draws independent.
    return end_of((destination, f"rev_{relation}", source), negatives.src_weight), drawn


def _ascending(node_type: NodeType, ids: Tensor) -> tuple[Tensor, Tensor]:
    nodes, places = torch.unique(ids, return_inverse=True)
    return nodes, places


# torch_geometric's output makes bidirectional edges, because it merges a type with its reverse.
_EDGES = {
    SubgraphType.directional: Edges.DIRECTIONAL,
    SubgraphType.bidirectional: Edges.DIRECTIONAL,
    SubgraphType.induced: Edges.INDUCED,
}
_STRATEGIES = {"uniform": TemporalStrategy.SAMPLE, "last": TemporalStrategy.LATEST}


@dataclass(frozen=True)
class Draws:
    """The keys of the draws of one batch."""

    run_seed: int
    step: int = 0
    position: int = 0  # position of the batch's first seed in the epoch's order

    @classmethod
    def from_torch(cls, generator: torch.Generator | None = None) -> Draws:
        """Seed the draws from torch's global generator, which khop only uses for this.

        torch's DataLoader makes the same draw at `iter()`, so a shuffled order also equals torch's.
        """
        return cls(int(torch.empty((), dtype=torch.int64).random_(generator=generator)))

    def key(self, purpose: Purpose) -> DrawKey:
        """Return the key of the batch's hops, or of its negatives."""
        return DrawKey.of(self.run_seed, purpose, 0, self.step)


@dataclass(frozen=True)
class SamplerSettings:
    """Settings of a sampler, with torch_geometric's names."""

    num_neighbors: NumNeighbors
    replace: bool
    subgraph_type: SubgraphType
    disjoint: bool  # a separate subgraph per seed; always true with times
    temporal_strategy: str
    time_window: tuple[int, int] | None
    time_attr: str | None
    weight_attr: str | None
    exclude: Exclude | None

    def hops(self, edges: Directed) -> HopSampler:
        """Return the sampler of the hops along these edges."""
        return HopSampler(
            edges.source.graph,
            _fanouts(self.num_neighbors, edges),
            rule=_rule(self),
            trees="disjoint" if self.disjoint else "merged",
            expansion=Expansion.SUBGRAPH,
            edge_ids=True,
            output=_EDGES[self.subgraph_type],
        )


@dataclass(frozen=True, eq=False)
class KeyedSampler:
    """A thread-safe sampler with fixed settings, which takes its draws as an argument."""

    settings: SamplerSettings
    edges: Directed
    hops: HopSampler
    ends: NegativeEnds
    warning: SupervisionWarning

    def sample_nodes(self, inputs: NodeSamplerInput, draws: Draws) -> Output:
        """Sample the neighborhood of `inputs.node`."""
        output = self.sample_typed({inputs.input_type or NODE: inputs}, draws)
        output.metadata = (inputs.input_id, inputs.time)
        return output

    def sample_typed(self, inputs: Mapping[NodeType, NodeSamplerInput], draws: Draws) -> Output:
        """Sample the neighborhood of nodes of several types, type after type in a batch."""
        counts = [of_type.node.numel() for of_type in inputs.values()]
        positions = torch.split(torch.arange(draws.position, draws.position + sum(counts)), counts)
        times: dict[NodeType, Tensor] = {}
        for node_type, of_type in inputs.items():
            times |= self._seed_times(node_type, of_type) or {}
        nodes = {node_type: of_type.node.long() for node_type, of_type in inputs.items()}
        seeds = Seeds(nodes, dict(zip(nodes, positions, strict=True)), times or None)
        output = self._given(self._typed_output(seeds, draws))
        output.metadata = {t: (of_type.input_id, of_type.time) for t, of_type in inputs.items()}
        return output

    def sample_edges(
        self, inputs: EdgeSamplerInput, neg_sampling: NegativeSampling | None, draws: Draws
    ) -> Output:
        """Sample the neighborhood of the ends of edges, and of negatives."""
        key = draws.key(Purpose.NEGATIVE)
        links = LinkBatch.of(inputs, neg_sampling, draws.position, key, self.ends)
        planted = links.planted(key, disjoint=self.settings.disjoint)
        seeds = LinkSeeds({links.edge_type: links.seeds}, key)
        data_types = set(self.edges.data_types.values())
        output = self._typed_output(
            planted.seeds, draws, excluded_pairs(seeds, self.settings.exclude, data_types)
        )
        if draws.step == 0:
            self.warning.check(output, links.edge_type, links.seeds.batch_edges)
        if self.settings.disjoint:
            output.batch = {t: links.of_trees[trees] for t, trees in output.batch.items()}
        output = self._given(output)
        output.metadata = links.metadata(inputs.input_id, planted.rows[links.edge_type])
        return output

    def prepare_negatives(self, edge_type: EdgeType | None, neg_sampling: NegativeSampling | None) -> None:
        """Check the settings for links of a type, and prepare the draws of their negatives.

        Raises ValueError for invalid weights, and if the reverse type to exclude does not exist.
        """
        if self.settings.exclude is Exclude.EDGE_AND_REVERSE:
            checked_reverse(edge_type or EDGE, set(self.edges.data_types.values()))
        if neg_sampling is not None:
            drawn_ends(edge_type or EDGE, neg_sampling, self.ends)

    def _seed_times(self, node_type: NodeType, inputs: NodeSamplerInput) -> dict[NodeType, Tensor] | None:
        """Return the given times, else the times of the nodes."""
        if self.settings.time_attr is None:
            return None
        if inputs.time is not None:
            return {node_type: inputs.time.long()}
        if node_type not in self.edges.source.node_times:
            raise ValueError(
                f"Seed time needs to be specified: nodes have no '{self.settings.time_attr}'; "
                "give 'input_time'"
            )
        return {node_type: self.edges.source.node_times[node_type][inputs.node].long()}

    def _typed_output(
        self, seeds: Seeds, draws: Draws, excluded: Mapping[EdgeType, Tensor] = MappingProxyType({})
    ) -> HeteroSamplerOutput:
        view: GraphStore = self.edges.source.graph
        if excluded:
            view = WithoutEdges(view, self.edges.sampled_pairs(excluded))
        return self.edges.output(self.hops.sample(seeds, draws.key(Purpose.HOP), view=view))

    def _given(self, output: HeteroSamplerOutput) -> Output:
        """Return an output in torch_geometric's form: without types if the data has none."""
        found = output if self.edges.source.is_typed else single(output)
        return (
            found.to_bidirectional() if self.settings.subgraph_type is SubgraphType.bidirectional else found
        )


class _DrawnByWeight(Weighted):
    """Draws by weight of edges that carry no weights, as torch_geometric's; also for induced subgraphs."""

    def has_weights(self, fanout: int) -> bool:
        """Return False."""
        return False


def _rule(settings: SamplerSettings) -> Rule:
    """Return the rule by which neighbors are drawn."""
    if settings.temporal_strategy not in _STRATEGIES:
        raise ValueError(
            f"No valid temporal strategy found: '{settings.temporal_strategy}' is none of {list(_STRATEGIES)}"
        )
    inner: Rule = Uniform(settings.replace)
    if settings.weight_attr is not None:
        inner = _DrawnByWeight(settings.weight_attr, settings.replace)
    if settings.time_attr is None:
        return inner
    strategy = _STRATEGIES[settings.temporal_strategy]
    if strategy is TemporalStrategy.LATEST and settings.weight_attr is None:
        inner = Uniform()  # the last ones are selected, not drawn
    return Temporal(settings.time_attr, strategy, settings.time_window, inner)


def _fanouts(given: NumNeighbors, edges: Directed) -> list[dict[EdgeType, int]]:
    """Return one mapping per hop from sampled edge types to fanouts, given fanouts by the data's types."""
    data_types = list(dict.fromkeys(edges.data_types.values()))
    values = given.get_values(data_types if edges.source.is_typed else None)
    named = as_mapping(values, lambda per_hop: dict.fromkeys(data_types, per_hop))
    by_type = {sampled: named[t] for sampled, t in edges.data_types.items()}
    return [{t: _whole(of_type[hop]) for t, of_type in by_type.items()} for hop in range(len(given))]


def _whole(fanout: Any) -> int:
    if isinstance(fanout, bool) or not hasattr(fanout, "__index__"):
        raise ValueError(f"num_neighbors has {fanout!r}: give whole numbers, one per hop, or -1 for all")
    return index(fanout)
