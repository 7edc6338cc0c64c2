"""Negatives of links: drawn, given, or hard negatives with the highest scores.

The ends of links and of negatives are the seeds of the node sampler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from khop.arguments import check_word, whole_number
from khop.draw import (
    CandidateScore,
    DrawnNegatives,
    GivenNegatives,
    MixedNegatives,
    Negatives,
    Positives,
    TableNegatives,
    UniformNegatives,
)
from khop.graph.inputs import tensor_of, whole_ids
from khop.graph.needs import NegativeNeed
from khop.graph.rule import Rule, time_column
from khop.graph.store import GraphStore
from khop.sampling.links.link_seeds import PADDING
from khop.sampling.node_set import NodeSet
from khop.sampling.seeds import LinkSeeds, SeedLinks, Seeds, check_ids
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
    """Seed nodes without links, and the rows of the endpoints of links among them."""

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


SOURCE_DRAWS = 1 << 62  # added to the key of negatives, for those that replace sources
PART_DRAWS = 1 << 56  # added to the key of negatives for each part of mixed negatives before the part


@dataclass(frozen=True)
class LinkNegatives:
    """The way in which a sampler of links finds their negatives."""

    graph: GraphStore
    negatives: Negatives | None
    rule: Rule  # its times limit the draws
    relation: str | None = None  # column of relations: exact negatives are those of a relation

    @property
    def parts(self) -> tuple[DrawnNegatives | GivenNegatives | TableNegatives, ...]:
        """The kinds of negatives, one after another for each link."""
        if isinstance(self.negatives, MixedNegatives):
            return self.negatives.parts
        return () if self.negatives is None else (self.negatives,)

    def needs(self, edge_type: EdgeType) -> Iterator[NegativeNeed]:
        """Yield the arrays from which negatives of links are drawn."""
        for part in self.parts:
            if isinstance(part, GivenNegatives | TableNegatives):
                continue
            for of_end in self._drawn_by(edge_type, part):
                if of_end is not None:
                    yield NegativeNeed(of_end, part, time_column(self.rule, of_end), self.relation)

    def of(self, edge_type: EdgeType, links: LinkSeeds) -> DrawnEnds:
        """Return the negatives of the links of a type."""
        of_type = links.by_type[edge_type]
        if of_type.negatives is not None and not any(isinstance(part, GivenNegatives) for part in self.parts):
            raise ValueError(
                f"links of {edge_type} have negatives, which negatives={self.negatives} would not "
                "use: use negatives=khop.GivenNegatives(), or leave them out of the links"
            )
        found = [
            self._drawn(edge_type, part, links, number)
            if isinstance(part, DrawnNegatives)
            else self._listed(edge_type, part, of_type)
            for number, part in enumerate(self.parts)
        ]
        destinations = [of_part.destinations for of_part in found if of_part.destinations is not None]
        sources = [of_part.sources for of_part in found if of_part.sources is not None]
        return DrawnEnds(*(torch.cat(ends, dim=1) if ends else None for ends in (destinations, sources)))

    def _listed(
        self, edge_type: EdgeType, part: GivenNegatives | TableNegatives, links: SeedLinks
    ) -> DrawnEnds:
        """Return negatives that are not drawn: those of the links, or of their sources in a table."""
        if isinstance(part, TableNegatives):
            sources, count = self.graph.num_nodes(edge_type[0]), self.graph.num_nodes(edge_type[2])
            table = part.table_of(edge_type)
            if len(table) != sources:
                raise ValueError(
                    f"table of negatives of {edge_type}: {len(table)} rows for {sources:,} "
                    f"{edge_type[0]!r} nodes; give one for each"
                )
            found = table[links.edges[0]]
            _check_not_padded(f"table of negatives of {edge_type}", found, count)
            return DrawnEnds(found)
        if links.negatives is None:
            raise ValueError(
                f"links of {edge_type} have no negatives, which {self.negatives} takes: "
                "give khop.Links(negatives=...)"
            )
        count = self.graph.num_nodes(edge_type[2])
        _check_not_padded(f"negatives of {edge_type}", links.negatives, count)
        return DrawnEnds(links.negatives)

    def _drawn(
        self, edge_type: EdgeType, negatives: DrawnNegatives, links: LinkSeeds, part: int
    ) -> DrawnEnds:
        of_type = links.by_type[edge_type]
        # Links with the same position get the same draw.
        positions = of_type.positions // negatives.group if negatives.group > 1 else of_type.positions
        relations = None if self.relation is None else of_type.relations
        found: list[Tensor | None] = []
        for number, drawing in enumerate(self._drawn_by(edge_type, negatives)):
            if drawing is None:
                found.append(None)
                continue
            column = time_column(self.rule, drawing)
            given = of_type.edges[number].contiguous()
            wanted = Positives(given, positions, of_type.times, column, relations, self.relation)
            key = links.negative_key.plus(part * PART_DRAWS + number * SOURCE_DRAWS)
            found.append(self.graph.sample_negatives(drawing, negatives, wanted, key))
        return DrawnEnds(*found)

    def _drawn_by(
        self, edge_type: EdgeType, negatives: DrawnNegatives
    ) -> tuple[EdgeType | None, EdgeType | None]:
        """Return the edge types that draw the negative destinations and the negative sources of links."""
        of_destinations = None if negatives.corrupt == "source" else edge_type
        if negatives.corrupt == "destination":
            return of_destinations, None
        reverse = self.graph.schema.reverse(edge_type)
        if reverse is None and edge_type[0] == edge_type[2] and isinstance(negatives, UniformNegatives):
            reverse = None if negatives.exact else edge_type
        if reverse is None:
            raise ValueError(
                f"negatives of {edge_type} with corrupt={negatives.corrupt!r}: sources are drawn with the "
                "reverse edge type, but the schema has none; write the graph with "
                'EdgeTable(reverse_of=...), or use corrupt="destination"'
            )
        return of_destinations, reverse


_SCORES_AT_ONCE = 1 << 22
# The largest rounded values: scores of 4,096 columns are then whole numbers below 2^53, exact in float64.
_LARGEST = {"dot": 1 << 20, "l1": 1 << 20, "l2": 1 << 19}


def hard_negatives(
    sources: Tensor,
    destinations: Tensor,
    keep: int,
    *,
    known: Tensor | None = None,
    grid: int = 64,
    original_ids: Tensor | None = None,
    score: CandidateScore = "dot",
) -> Tensor:
    """Find the destinations with the highest scores for each source.

    Scores are computed exactly on every machine, in integers; ties are broken by the lowest original id. A
    source with fewer than `keep` other destinations gets some of them repeatedly.

    Args:
        sources: Embeddings of all source nodes, floats (sources, width); at most 4,096 wide.
        destinations: Embeddings of all destination nodes, floats (destinations, width).
        keep: Number of destinations per source.
        known: Pairs to exclude, int64 (2, pairs) of global ids, sources first: give all links, and the
            pairs of a node with itself. Default None: no pairs.
        grid: Number of steps per unit to which embeddings are rounded; default 64.
        original_ids: Original ids of the destinations, int64 (destinations), if the graph was renumbered.
            Default None: `destinations` is in the original order.
        score: "dot" (default), the inner product, or "l1" or "l2", the negative distance.
    Returns:
        Global ids of destinations, best first, int64 (sources, keep).
    Raises:
        ValueError: The shapes do not fit, or a source has no other destination.
    Example:
        >>> sources, destinations = torch.tensor([[1.0]]), torch.tensor([[0.5], [3.0], [2.0]])
        >>> khop.hard_negatives(sources, destinations, keep=2)
        tensor([[1, 2]])
        >>> khop.hard_negatives(sources, destinations, keep=2, known=torch.tensor([[0], [1]]))
        tensor([[2, 0]])
    """
    sources, destinations = (
        tensor_of(name, rows, "must be floats (nodes, width)")
        for name, rows in (("sources", sources), ("destinations", destinations))
    )
    known, original_ids = (
        None if given is None else whole_ids(name, tensor_of(name, given), "must be whole numbers")
        for name, given in (("known", known), ("original_ids", original_ids))
    )
    for name, rows in (("sources", sources), ("destinations", destinations)):
        if rows.dim() != 2 or not rows.is_floating_point() or rows.shape[1] > 4096:
            raise ValueError(
                f"{name}: {rows.dtype} of shape {tuple(rows.shape)}; must be floats (nodes, width), at most "
                "4,096 wide"
            )
    check_word("score", score, CandidateScore)
    largest = _LARGEST[score]
    grid, keep = whole_number("grid", grid, 1, largest), whole_number("keep", keep, 1)
    if keep > len(destinations):
        raise ValueError(f"keep {keep}: there are {len(destinations)} destinations; give at most this number")
    order = None if original_ids is None else original_ids.argsort()
    rows = _rounded("sources", sources, grid, largest)
    columns = _rounded("destinations", destinations, grid, largest)
    columns = columns if order is None else columns[order]
    pairs = torch.empty(2, 0, dtype=torch.int64) if known is None else known[:, known[0].argsort()]
    places = pairs[1] if order is None else _inverse(order)[pairs[1]]
    at_once = max(1, _SCORES_AT_ONCE // max(len(columns), 1))
    found = [torch.empty(0, keep, dtype=torch.int64)]
    for begin in range(0, len(rows), at_once):
        scores = _scores(rows[begin : begin + at_once], columns, score)
        bounds = torch.searchsorted(pairs[0].contiguous(), torch.tensor([begin, begin + len(scores)]))
        first, last = bounds.tolist()
        scores[pairs[0, first:last] - begin, places[first:last]] = -torch.inf
        found.append(_largest(scores, keep, begin))
    picked = torch.cat(found)
    return picked if order is None else order[picked]


def _scores(rows: Tensor, columns: Tensor, score: CandidateScore) -> Tensor:
    """Return (rows, columns): scores that order the columns of each row as `score` does, exactly."""
    if score == "l1":
        return -torch.cdist(rows, columns, p=1.0)
    products = rows @ columns.T
    # Squared distances, without the square of the row, which is the same for all columns.
    return products if score == "dot" else 2 * products - columns.square().sum(1)


def _rounded(name: str, rows: Tensor, grid: int, largest: int) -> Tensor:
    values = (rows.detach().cpu().double() * grid).round()
    if values.numel() and not float(values.abs().max()) <= largest:
        raise ValueError(
            f"{name}: values reach {float(rows.abs().max())}, must be finite and at most {largest // grid} "
            f"with grid {grid}; normalize them, or give a smaller grid"
        )
    return values


def _largest(scores: Tensor, keep: int, first: int) -> Tensor:
    """Return the columns of the largest scores of each row, the lowest column first if scores are equal."""
    limit = scores.topk(keep, dim=1).values[:, -1:]
    above, equal = scores > limit, scores == limit
    missing = keep - above.sum(1, keepdim=True)
    picked = (above | (equal & (equal.cumsum(1) <= missing))).nonzero()[:, 1].view(len(scores), keep)
    values = scores.gather(1, picked)
    order = values.argsort(dim=1, descending=True, stable=True)
    picked, counts = picked.gather(1, order), (values > -torch.inf).sum(1)
    if len(scores) and int(counts.min()) == 0:
        raise ValueError(
            f"source {first + int(counts.argmin())}: all destinations are known links, so there is no "
            "negative; leave the source out of the links"
        )
    again = torch.arange(keep) % counts[:, None]
    return picked.gather(1, again)


def _inverse(order: Tensor) -> Tensor:
    return torch.empty_like(order).scatter_(0, order, torch.arange(order.numel()))


def _check_not_padded(what: str, negatives: Tensor, num_nodes: int) -> None:
    """Raise ValueError unless the negatives, (links, k), are nodes."""
    if (negatives == PADDING).any():
        raise ValueError(
            f"{what}: padding with -1 is only for khop.evaluate_links; give a loader the same number for "
            "each link"
        )
    check_ids(what, negatives.flatten(), num_nodes)
