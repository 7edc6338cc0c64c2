"""torch_geometric's sampler interface, implemented by khop's neighbor sampler."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import index
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch_geometric.sampler import (
    BaseSampler,
    EdgeSamplerInput,
    HeteroSamplerOutput,
    NegativeSampling,
    NodeSamplerInput,
)
from torch_geometric.sampler.base import NumNeighbors, SubgraphType

from khop.arguments import as_mapping, instance_of
from khop.draw import DrawKey, Purpose
from khop.graph.store import GraphStore
from khop.pyg.directions import Directed, Direction
from khop.pyg.links import Links, drawn_ends
from khop.pyg.negatives import DrawnEnd
from khop.pyg.outputs import Output, single
from khop.pyg.source import Attributes
from khop.pyg.supervision import checked_reverse, excluded_pairs, warn_of_supervision
from khop.pyg.typed_data import EDGE, NODE
from khop.rules.rule import Rule
from khop.rules.temporal import Temporal, TemporalStrategy
from khop.rules.uniform import Uniform
from khop.rules.weighted import Weighted
from khop.sampling.exclusion import Exclude, WithoutEdges, checked_exclude
from khop.sampling.neighbor import Expansion
from khop.sampling.neighbor import NeighborSampler as HopSampler
from khop.sampling.outputs import Output as Edges
from khop.sampling.sampler import LinkSeeds, Seeds
from khop.schema import EdgeType, NodeType

# torch_geometric's own output makes bidirectional edges, because it merges a type with its reverse.
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
        """Seed the draws from torch's generator: the only place where khop reads a global one.

        torch's own DataLoader makes the same draw at `iter()`, so a shuffled order also equals torch's.
        """
        return cls(int(torch.empty((), dtype=torch.int64).random_(generator=generator)))

    def key(self, purpose: Purpose) -> DrawKey:
        """Return the key of the batch's hops, or of its negatives."""
        return DrawKey.of(self.run_seed, purpose, 0, self.step)


class NeighborSampler(BaseSampler):
    """A replacement of torch_geometric's `NeighborSampler`, for its loaders and with the same arguments.

    `sample_from_nodes` and `sample_from_edges` draw from torch's generator; khop's loaders pass their own
    draws. Settings may be assigned later, as torch_geometric's data modules do.
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: NumNeighbors | Sequence[int] | Mapping[EdgeType, Sequence[int]],
        subgraph_type: SubgraphType | str = "directional",
        replace: bool = False,
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        is_sorted: bool = False,
        share_memory: bool = False,  # no effect: threads share memory
        directed: bool = True,
        sample_direction: str = "forward",
        *,
        time_window: tuple[int, int] | None = None,
        exclude: Exclude | str | None = None,
    ) -> None:
        if not directed:
            subgraph_type = SubgraphType.induced
            warnings.warn(
                f"The usage of the 'directed' argument in '{type(self).__name__}' is deprecated. "
                "Use `subgraph_type='induced'` instead.",
                stacklevel=2,
            )
        if time_window is not None and time_attr is None:
            raise ValueError(f"time_window {time_window}: has no effect without times; give time_attr")
        self.sample_direction = self._followed(Direction(sample_direction))
        self.exclude = None if exclude is None else checked_exclude(exclude)
        self.time_window = time_window
        self._edges = Directed.of(data, Attributes(time_attr, weight_attr, is_sorted), self.sample_direction)
        self._source = self._edges.source
        self._is_warned = self.exclude is not None  # of links that are also messages
        self._time_attr = time_attr
        self._weight_attr = weight_attr
        self.num_neighbors = num_neighbors
        self.subgraph_type = SubgraphType(subgraph_type)
        self.replace = replace
        self._disjoint = disjoint
        self.temporal_strategy = temporal_strategy
        self._built: tuple[object, HopSampler] | None = None
        self._drawn_ends: dict[EdgeType, DrawnEnd] = {}
        self._sampler()

    @property
    def num_neighbors(self) -> NumNeighbors:
        """Fanouts per hop, and per edge type."""
        return self._num_neighbors

    @num_neighbors.setter
    def num_neighbors(self, value: NumNeighbors | Sequence[int] | Mapping[EdgeType, Sequence[int]]) -> None:
        remedy = "give a list with a number per hop, or one for each edge type"
        instance_of("num_neighbors is", value, (NumNeighbors, list, tuple, Mapping), remedy)
        self._num_neighbors = value if isinstance(value, NumNeighbors) else NumNeighbors(value)

    @property
    def disjoint(self) -> bool:
        """True if every seed has a separate subgraph; always true with times."""
        return self._disjoint or self._time_attr is not None

    @disjoint.setter
    def disjoint(self, value: bool) -> None:
        self._disjoint = value

    @property
    def edge_permutation(self) -> Tensor | Mapping[EdgeType, Tensor | None] | None:
        """Map from sampled edges to the data's own edges; None if the numbers are equal."""
        permutations = self._edges.permutations
        return permutations if self._source.is_typed else permutations[EDGE]

    def _followed(self, direction: Direction) -> Direction:
        """Return the direction in which hops follow edges."""
        return direction

    def sample_from_nodes(self, index: NodeSamplerInput) -> Output:
        """Sample the neighborhood of `index.node`."""
        return self.sample_nodes(index, Draws.from_torch())

    def sample_from_edges(
        self, index: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None
    ) -> Output:
        """Sample the neighborhood of the ends of `index`'s edges, and of negatives."""
        return self.sample_edges(index, neg_sampling, Draws.from_torch())

    def sample_nodes(self, inputs: NodeSamplerInput, draws: Draws) -> Output:
        """Sample as `sample_from_nodes` does, as a pure function of the arguments."""
        node_type, count = inputs.input_type or NODE, inputs.node.numel()
        positions = torch.arange(draws.position, draws.position + count)
        times = self._seed_times(node_type, inputs)
        seeds = Seeds({node_type: inputs.node.long()}, {node_type: positions}, times)
        output = self._output(seeds, draws)
        output.metadata = (inputs.input_id, inputs.time)
        return output

    def sample_typed(self, inputs: Mapping[NodeType, NodeSamplerInput], draws: Draws) -> Output:
        """Sample as `sample_nodes` does, for seeds of several node types, type after type in a batch."""
        counts = [of_type.node.numel() for of_type in inputs.values()]
        positions = torch.split(torch.arange(draws.position, draws.position + sum(counts)), counts)
        times: dict[NodeType, Tensor] = {}
        for node_type, of_type in inputs.items():
            times |= self._seed_times(node_type, of_type) or {}
        nodes = {node_type: of_type.node.long() for node_type, of_type in inputs.items()}
        seeds = Seeds(nodes, dict(zip(nodes, positions, strict=True)), times or None)
        output = self._output(seeds, draws)
        output.metadata = {t: (of_type.input_id, of_type.time) for t, of_type in inputs.items()}
        return output

    def sample_edges(
        self, inputs: EdgeSamplerInput, neg_sampling: NegativeSampling | None, draws: Draws
    ) -> Output:
        """Sample as `sample_from_edges` does, as a pure function of the arguments."""
        key = draws.key(Purpose.NEGATIVE)
        links = Links.of(inputs, neg_sampling, draws.position, key, self._drawn_end)
        planted = links.planted(key, disjoint=self.disjoint)
        seeds = LinkSeeds({links.edge_type: links.seeds}, key)
        data_types = set(self._edges.data_types.values())
        output = self._typed_output(planted.seeds, draws, excluded_pairs(seeds, self.exclude, data_types))
        if not self._is_warned and draws.step == 0:
            self._is_warned = True
            warn_of_supervision(output, links.edge_type, links.seeds.batch_edges)
        if self.disjoint:
            output.batch = {t: links.of_trees[trees] for t, trees in output.batch.items()}
        output = self._given(output)
        output.metadata = links.metadata(inputs.input_id, planted.rows[links.edge_type])
        return output

    def prepare_negatives(self, edge_type: EdgeType | None, neg_sampling: NegativeSampling | None) -> None:
        """Check the settings for links of a type, and prepare the draws of their negatives.

        ValueError for unusable weights, and for a missing reverse type that is to be excluded.
        """
        if self.exclude is Exclude.EDGE_AND_REVERSE:
            checked_reverse(edge_type or EDGE, set(self._edges.data_types.values()))
        if neg_sampling is not None:
            drawn_ends(edge_type or EDGE, neg_sampling, self._drawn_end)

    def _drawn_end(self, edge_type: EdgeType, weights: Tensor | None) -> DrawnEnd:
        """Return the ends for a type. They are cached: preparing the weights costs as much as many draws."""
        end = self._drawn_ends.get(edge_type)
        if end is None or not end.is_of(weights):
            end = self._drawn_ends[edge_type] = DrawnEnd.of(self._source, edge_type, weights)
        return end

    def _seed_times(self, node_type: NodeType, inputs: NodeSamplerInput) -> dict[NodeType, Tensor] | None:
        """Return the given times, else the times of the nodes."""
        if self._time_attr is None:
            return None
        if inputs.time is not None:
            return {node_type: inputs.time.long()}
        if node_type not in self._source.node_times:
            raise ValueError(
                f"Seed time needs to be specified: nodes have no '{self._time_attr}'; give 'input_time'"
            )
        return {node_type: self._source.node_times[node_type][inputs.node].long()}

    def _output(self, seeds: Seeds, draws: Draws) -> Output:
        return self._given(self._typed_output(seeds, draws))

    def _typed_output(
        self, seeds: Seeds, draws: Draws, excluded: Mapping[EdgeType, Tensor] = MappingProxyType({})
    ) -> HeteroSamplerOutput:
        view: GraphStore = self._source.graph
        if excluded:
            view = WithoutEdges(view, self._edges.sampled_pairs(excluded))
        return self._edges.output(self._sampler().sample_from(view, seeds, draws.key(Purpose.HOP)))

    def _given(self, output: HeteroSamplerOutput) -> Output:
        """Return an output as torch_geometric gives it: without types if the data has none."""
        found = output if self._source.is_typed else single(output)
        return found.to_bidirectional() if self.subgraph_type is SubgraphType.bidirectional else found

    def _sampler(self) -> HopSampler:
        """Return a sampler for the current settings."""
        settings = (
            self._num_neighbors,
            self.replace,
            self.subgraph_type,
            self.disjoint,
            self.temporal_strategy,
            self.time_window,
        )
        if self._built is None or self._built[0] != settings:
            sampler = HopSampler(
                self._source.graph,
                _fanouts(self._num_neighbors, self._edges),
                rule=_rule(self),
                disjoint=self.disjoint,
                expansion=Expansion.SUBGRAPH,
                edge_ids=True,
                output=_EDGES[self.subgraph_type],
            )
            self._built = (settings, sampler)
        return self._built[1]


class BidirectionalNeighborSampler(NeighborSampler):
    """torch_geometric's sampler of the same name: a hop draws neighbors along edges and against them.

    `num_neighbors` counts for each direction. An edge drawn in both directions is returned once.
    """

    def _followed(self, direction: Direction) -> Direction:
        if direction is not Direction.FORWARD:
            raise ValueError(f"sample_direction {direction}: hops go in both directions; leave it out")
        return Direction.BOTH


def _rule(sampler: NeighborSampler) -> Rule:
    """Return the rule by which neighbors are drawn."""
    if sampler.temporal_strategy not in _STRATEGIES:
        raise ValueError(
            f"No valid temporal strategy found: '{sampler.temporal_strategy}' is none of {list(_STRATEGIES)}"
        )
    inner: Rule = Uniform(sampler.replace)
    if sampler._weight_attr is not None:
        inner = Weighted(sampler._weight_attr, sampler.replace)
    if sampler._time_attr is None:
        return inner
    strategy = _STRATEGIES[sampler.temporal_strategy]
    if strategy is TemporalStrategy.LATEST and sampler._weight_attr is None:
        inner = Uniform()  # the last ones are taken, not drawn
    return Temporal(sampler._time_attr, strategy, sampler.time_window, inner)


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
