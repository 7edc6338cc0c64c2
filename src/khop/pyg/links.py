"""What a batch of links asks of a sampler, and where their ends then are, as torch_geometric lays it out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling

from khop.pyg.negatives import NegativeNodes, Slots
from khop.pyg.source import EDGE
from khop.sampling.sampler import Seeds
from khop.schema import NodeType

NodesOf = Callable[[NodeType, Tensor | None], NegativeNodes]  # node type, weights


@dataclass(frozen=True)
class Ends:
    """The sources of links, or their destinations; those of negatives last, link after link, k times."""

    node_type: NodeType
    nodes: Tensor  # int64 (ends)
    times: Tensor | None  # int64 (ends)

    def numbers(self, num_links: int, start: int, role: int, roles: int) -> Tensor:
        """int64: the place of an end among all ends of the epoch, whatever the batches."""
        links = max(num_links, 1)
        number = torch.arange(self.nodes.numel())
        return (start + number % links) * roles + role + number // links

    def copies(self, num_links: int) -> int:
        """How many ends a link has here at most: its own and its negatives'."""
        return -(-self.nodes.numel() // max(num_links, 1))


@dataclass(frozen=True)
class Rooted:
    """The seeds of a batch of links, and the row of every end among those of its node type."""

    seeds: Seeds
    source_rows: Tensor  # int64 (sources)
    destination_rows: Tensor  # int64 (destinations)


@dataclass(frozen=True)
class Links:
    """The links of a batch and their negatives."""

    count: int  # without negatives
    position: int  # of the first link in the epoch's global order
    sources: Ends
    destinations: Ends
    labels: Tensor | None
    is_triplet: bool

    @classmethod
    def of(
        cls, inputs: EdgeSamplerInput, negatives: NegativeSampling | None, slots: Slots, nodes_of: NodesOf
    ) -> Links:
        """With negatives drawn. In binary mode both ends of them are; a triplet's source is its link's."""
        source, _, destination = inputs.input_type or EDGE
        ends = [inputs.row.long(), inputs.col.long()]
        labels, times = inputs.label, inputs.time
        until = None if times is None else _repeated(times, slots.count)
        for end, node_type, weights in _drawn_ends(source, destination, negatives):
            drawn = nodes_of(node_type, weights).drawn(slots.words(end), until)
            ends[end] = torch.cat([ends[end], drawn])
        if negatives is not None and negatives.is_binary():
            labels = torch.ones(slots.num_links) if labels is None else labels
            labels = torch.cat([labels, labels.new_zeros(slots.count, *labels.shape[1:])])
        return cls(
            slots.num_links,
            slots.position,
            Ends(source, ends[0], None if times is None else _repeated(times, ends[0].numel())),
            Ends(destination, ends[1], None if times is None else _repeated(times, ends[1].numel())),
            labels,
            negatives is not None and negatives.is_triplet(),
        )

    def rooted(self, *, disjoint: bool) -> Rooted:
        """What to sample around: every node once, in ascending order; disjoint, every end by itself."""
        nodes = _joined(self.sources, self.destinations, self.sources.nodes, self.destinations.nodes)
        rows = {t: torch.arange(ids.numel()) for t, ids in nodes.items()}
        positions, times = rows, None
        if disjoint:
            positions = _joined(self.sources, self.destinations, *self._numbers())
            if self.sources.times is not None and self.destinations.times is not None:
                times = _joined(self.sources, self.destinations, self.sources.times, self.destinations.times)
        else:
            unique = {t: torch.unique(ids, return_inverse=True) for t, ids in nodes.items()}
            nodes = {t: ids for t, (ids, _) in unique.items()}
            rows = {t: inverse for t, (_, inverse) in unique.items()}
            positions = {t: torch.arange(ids.numel()) for t, ids in nodes.items()}
        return Rooted(
            Seeds(nodes, positions, times),
            rows[self.sources.node_type][: self.sources.nodes.numel()],
            rows[self.destinations.node_type][-self.destinations.nodes.numel() :],
        )

    def metadata(self, input_id: Tensor, rooted: Rooted) -> tuple[Tensor | None, ...]:
        """What torch_geometric's loaders make a batch's attributes of."""
        if not self.is_triplet:
            pairs = torch.stack([rooted.source_rows, rooted.destination_rows])
            return input_id, pairs, self.labels, self.sources.times
        positive, negative = rooted.destination_rows.tensor_split([self.count])
        negative = negative.view(-1, self.count).t().contiguous().squeeze(-1)
        return input_id, rooted.source_rows, positive, negative, self.sources.times

    @property
    def of_trees(self) -> Tensor:
        """int64 (ends): the link that an end, and its tree, belongs to."""
        ends = (self.sources.nodes.numel(), self.destinations.nodes.numel())
        return torch.cat([torch.arange(count) % max(self.count, 1) for count in ends])

    def _numbers(self) -> tuple[Tensor, Tensor]:
        of_source = self.sources.copies(self.count)
        roles = of_source + self.destinations.copies(self.count)
        return (
            self.sources.numbers(self.count, self.position, 0, roles),
            self.destinations.numbers(self.count, self.position, of_source, roles),
        )


def _drawn_ends(
    source: NodeType, destination: NodeType, negatives: NegativeSampling | None
) -> list[tuple[int, NodeType, Tensor | None]]:
    """Which ends negatives have of their own: 0 source, 1 destination; of which nodes, by what weights."""
    if negatives is None:
        return []
    drawn = [(1, destination, negatives.dst_weight)]
    return [(0, source, negatives.src_weight), *drawn] if negatives.is_binary() else drawn


def _joined(a: Ends, b: Ends, of_a: Tensor, of_b: Tensor) -> dict[NodeType, Tensor]:
    """Values of two ends by node type; of one type, the sources' first."""
    if a.node_type == b.node_type:
        return {a.node_type: torch.cat([of_a, of_b])}
    return {a.node_type: of_a, b.node_type: of_b}


def _repeated(times: Tensor, count: int) -> Tensor:
    """The links' times for as many ends, link after link."""
    return times.repeat(-(-count // max(times.numel(), 1)))[:count]
