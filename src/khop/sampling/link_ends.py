"""The ends of links and of their negatives as seed nodes, and the row of each end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from khop.sampling.node_set import NodeSet
from khop.sampling.sampler import LinkSeeds, Seeds
from khop.schema import EdgeType, NodeType

NegativesByType = Mapping[EdgeType, "DrawnEnds"]
# From ids of a node type, duplicates allowed: the distinct nodes in some order, and each id's index in it.
Numbering = Callable[[NodeType, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class EndRows:
    """Indices of the link ends of one edge type among the seeds of their node types."""

    source: Tensor  # int64 (links)
    destination: Tensor  # int64 (links)
    negatives: Tensor | None  # int64 (links, k)
    source_negatives: Tensor | None = None  # int64 (links, k)


@dataclass(frozen=True)
class DrawnEnds:
    """Negatives of the links of one edge type: int64 (links, k), global ids."""

    destinations: Tensor | None = None
    sources: Tensor | None = None


@dataclass(frozen=True)
class Planted:
    """Seeds that are nodes only, and the rows of the links' ends among them."""

    seeds: Seeds
    rows: Mapping[EdgeType, EndRows]


@dataclass(frozen=True)
class _End:
    """One end of every link of a type. Of negatives: the first of every link, then the second of each."""

    edge_type: EdgeType
    field: str  # name of a field of EndRows
    node_type: NodeType
    ids: Tensor  # (links), or (k, links)
    positions: Tensor  # same shape as ids, in a global order of all ends: the keys of disjoint trees
    times: Tensor | None


def first_seen(node_set: NodeSet) -> Numbering:
    """Return a numbering in first-seen order. `node_set` must be empty; its tables find duplicates."""

    def numbered(node_type: NodeType, ids: Tensor) -> tuple[Tensor, Tensor]:
        places = node_set.insert(node_type, ids).long()
        return node_set.nodes()[node_type], places

    return numbered


def plant_merged(seeds: Seeds, negatives: NegativesByType, numbering: Numbering) -> Planted:
    """Make one seed per node: the given seed nodes first, then the ends in the order of `numbering`."""
    ends = list(_ends(seeds.links, negatives))
    nodes, rows = dict(seeds.nodes), {}
    for node_type, ids in _joined(ends, "ids").items():
        own = nodes.get(node_type)
        num_own = 0 if own is None else own.numel()
        merged, places = numbering(node_type, ids)
        rows[node_type] = num_own + places
        nodes[node_type] = merged if own is None else torch.cat([own, merged])
    return Planted(Seeds(nodes, {}), _rows_by_edge_type(ends, rows))


def plant_apart(seeds: Seeds, negatives: NegativesByType) -> Planted:
    """Make one seed per end, duplicates included, with its link's time: for disjoint trees."""
    ends = list(_ends(seeds.links, negatives))
    nodes, positions, times = dict(seeds.nodes), dict(seeds.positions), dict(seeds.times or {})
    rows = {}
    for column, by_type in ((nodes, "ids"), (positions, "positions"), (times, "times")):
        for node_type, values in _joined(ends, by_type).items():
            own = column.get(node_type, values[:0])
            column[node_type] = torch.cat([own, values])
            if by_type == "ids":
                rows[node_type] = own.numel() + torch.arange(values.numel())
    return Planted(Seeds(nodes, positions, times or None), _rows_by_edge_type(ends, rows))


def _ends(links: LinkSeeds | None, negatives: NegativesByType) -> Iterator[_End]:
    assert links is not None
    for edge_type, of_type in links.by_type.items():
        source, _, destination = edge_type
        drawn = negatives[edge_type]
        of_ends = {
            "negatives": (destination, drawn.destinations),
            "source_negatives": (source, drawn.sources),
        }
        per_positive = 2 + sum(0 if ids is None else ids.shape[1] for _, ids in of_ends.values())
        first = of_type.positions * per_positive
        yield _End(edge_type, "source", source, of_type.edges[0], first, of_type.times)
        yield _End(edge_type, "destination", destination, of_type.edges[1], first + 1, of_type.times)
        slot = 2
        for field, (node_type, ids) in of_ends.items():
            if ids is not None:
                count = ids.shape[1]
                positions = torch.arange(slot, slot + count)[:, None] + first
                times = None if of_type.times is None else of_type.times.repeat(count)
                yield _End(edge_type, field, node_type, ids.t(), positions, times)
                slot += count


def _joined(ends: list[_End], name: str) -> dict[NodeType, Tensor]:
    """Concatenate a field of all ends, by node type."""
    parts: dict[NodeType, list[Tensor]] = {}
    for end in ends:
        values = getattr(end, name)
        if values is not None:
            parts.setdefault(end.node_type, []).append(values.flatten())
    return {node_type: torch.cat(of_type) for node_type, of_type in parts.items()}


def _rows_by_edge_type(ends: list[_End], rows: Mapping[NodeType, Tensor]) -> dict[EdgeType, EndRows]:
    """Split the rows of the concatenated (`_joined`) ids by the ends that they belong to."""
    taken = dict.fromkeys(rows, 0)
    found: dict[EdgeType, dict[str, Tensor]] = {}
    for end in ends:
        start = taken[end.node_type]
        taken[end.node_type] = start + end.ids.numel()
        own = rows[end.node_type][start : taken[end.node_type]].view(end.ids.shape)
        found.setdefault(end.edge_type, {})[end.field] = own
    return {
        t: EndRows(
            by["source"],
            by["destination"],
            *(
                by[name].t().contiguous() if name in by else None
                for name in ("negatives", "source_negatives")
            ),
        )
        for t, by in found.items()
    }
