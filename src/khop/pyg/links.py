"""A batch of links: its seeds for the sampler, and the rows of its ends in torch_geometric's layout."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling

from khop.draw import DrawKey
from khop.pyg.negatives import DrawnEnd
from khop.pyg.typed_data import EDGE
from khop.sampling.link_ends import DrawnEnds, EndRows, Planted, plant_apart, plant_merged
from khop.sampling.sampler import LinkSeeds, SeedLinks, Seeds
from khop.schema import EdgeType, NodeType

EndOf = Callable[[EdgeType, Tensor | None], DrawnEnd]  # edge type that leads to the ends, weights -> ends


@dataclass(frozen=True)
class Links:
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
    ) -> Links:
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
    ) -> Links:
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
    # The type that leads to the sources need not exist in the graph: its name makes the draws differ.
    return end_of((destination, f"rev_{relation}", source), negatives.src_weight), drawn


def _ascending(node_type: NodeType, ids: Tensor) -> tuple[Tensor, Tensor]:
    nodes, places = torch.unique(ids, return_inverse=True)
    return nodes, places
