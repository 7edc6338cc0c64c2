"""The ends of torch_geometric's negatives, drawn by the graph store's own draws."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from khop.draw import DrawKey, DrawnNegatives, Positives, UniformNegatives, WeightedNegatives
from khop.graph.csc_graph import CscGraph, csc_graph_from_edges
from khop.pyg.source import Source
from khop.schema import EdgeType

_TIME, _WEIGHT = "time", "weight"


@dataclass(frozen=True, eq=False)
class DrawnEnd:
    """Nodes of one type as ends of negatives: drawn uniformly or by weight, no later than the link."""

    store: CscGraph  # holds times and weights; needs no edges, because draws are not exact
    edge_type: EdgeType  # an edge type that leads to the nodes
    weights: Tensor | None
    version: int  # of the weights, because a user may change them in place

    @classmethod
    def of(cls, source: Source, edge_type: EdgeType, weights: Tensor | None) -> DrawnEnd:
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
        """Return true if draws by these weights can use these ends."""
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
        raise ValueError(
            "The 'weight' attribute in 'NegativeSampling' needs to match the number of nodes "
            f"{count} (got {weights.numel()})"
        )
    weights = weights.detach().cpu().view(-1)
    bad = (~((weights >= 0) & weights.isfinite())).nonzero()
    if bad.numel():
        node = int(bad[0])
        raise ValueError(
            f"The 'weight' attribute in 'NegativeSampling' is {weights[node].item()} for node {node}: "
            "weights are finite numbers, 0 or more"
        )
    if not bool((weights > 0).any()):
        raise ValueError(
            f"The 'weight' attribute in 'NegativeSampling' is 0 for all {count} nodes, so that none can be "
            "drawn: give some node a weight above 0, or leave the weights out"
        )
    return weights


def _version(weights: Tensor | None) -> int:
    return -1 if weights is None else weights._version


class DrawnEnds:
    """Ends that negatives are drawn for, cached: preparing their weights costs as much as many draws."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._made: dict[EdgeType, DrawnEnd] = {}

    def __call__(self, edge_type: EdgeType, weights: Tensor | None) -> DrawnEnd:
        """Return the end of an edge type, for these weights of its nodes."""
        end = self._made.get(edge_type)
        if end is None or not end.is_of(weights):
            end = self._made[edge_type] = DrawnEnd.of(self._source, edge_type, weights)
        return end
