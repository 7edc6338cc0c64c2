"""Samples of torch_geometric's inputs, as pure functions of the inputs and of keyed draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import index
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch_geometric.sampler import (
    EdgeSamplerInput,
    HeteroSamplerOutput,
    NegativeSampling,
    NodeSamplerInput,
)
from torch_geometric.sampler.base import NumNeighbors, SubgraphType

from khop.arguments import as_mapping
from khop.draw import DrawKey, Purpose
from khop.graph.store import GraphStore
from khop.pyg.directions import Directed
from khop.pyg.links import Links, drawn_ends
from khop.pyg.negatives import DrawnEnds
from khop.pyg.outputs import Output, single
from khop.pyg.supervision import SupervisionWarning, checked_reverse, excluded_pairs
from khop.pyg.typed_data import EDGE, NODE
from khop.rules.rule import Rule
from khop.rules.temporal import Temporal, TemporalStrategy
from khop.rules.uniform import Uniform
from khop.rules.weighted import Weighted
from khop.sampling.exclusion import Exclude, WithoutEdges
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


@dataclass(frozen=True)
class Settings:
    """Settings of a sampler, in torch_geometric's words."""

    num_neighbors: NumNeighbors
    replace: bool
    subgraph_type: SubgraphType
    disjoint: bool  # every seed has a separate subgraph; always true with times
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
    """A sampler with fixed settings, whose draws are an argument. Threads may share it."""

    settings: Settings
    edges: Directed
    hops: HopSampler
    ends: DrawnEnds
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
        links = Links.of(inputs, neg_sampling, draws.position, key, self.ends)
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

        ValueError for unusable weights, and for a missing reverse type that is to be excluded.
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
        """Return an output as torch_geometric gives it: without types if the data has none."""
        found = output if self.edges.source.is_typed else single(output)
        return (
            found.to_bidirectional() if self.settings.subgraph_type is SubgraphType.bidirectional else found
        )


def _rule(settings: Settings) -> Rule:
    """Return the rule by which neighbors are drawn."""
    if settings.temporal_strategy not in _STRATEGIES:
        raise ValueError(
            f"No valid temporal strategy found: '{settings.temporal_strategy}' is none of {list(_STRATEGIES)}"
        )
    inner: Rule = Uniform(settings.replace)
    if settings.weight_attr is not None:
        inner = Weighted(settings.weight_attr, settings.replace)
    if settings.time_attr is None:
        return inner
    strategy = _STRATEGIES[settings.temporal_strategy]
    if strategy is TemporalStrategy.LATEST and settings.weight_attr is None:
        inner = Uniform()  # the last ones are taken, not drawn
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
