"""Draws of negatives from local edges."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from threading import Lock
from types import MappingProxyType
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from khop.draw import DegreeNegatives, DrawKey, DrawnNegatives, Positives, WeightedNegatives, stream
from khop.graph.derived import Derived
from khop.graph.folder import ORIGINAL_ID
from khop.graph.layout import edge_array, node_column
from khop.kernels.csc import Csc, build_csc, index_dtype
from khop.kernels.draw_negatives import Candidates, NegativeDraw, Partners, draw_negatives
from khop.kernels.draw_negatives import NothingLeft as NothingLeft
from khop.kernels.edge_arrays import weight_sums
from khop.kernels.gather import gather
from khop.schema import EdgeType, NodeType


@dataclass(frozen=True)
class RelatedPartners:
    """The partner ranks of each pair of a source and a relation.

    Row i belongs to the i-th pair. Additional rows, one per source, are for sources without such an edge.
    """

    ranks: Csc
    keys: Tensor  # int64 (pairs), ascending: source * relations + relation
    relations: int  # number of relations

    def rows(self, sources: Tensor, relations: Tensor) -> Tensor:
        """Return the row of each source and relation, int64 (n)."""
        keys = sources * self.relations + relations
        at = torch.searchsorted(self.keys, keys)
        found = torch.zeros_like(at, dtype=torch.bool)
        inside = (at < self.keys.numel()) & (relations < self.relations)
        found[inside] = self.keys[at[inside]] == keys[inside]
        return torch.where(found, at, self.keys.numel() + sources)


def number_column(edge_type: EdgeType, name: str, columns: Mapping[str, Tensor]) -> Tensor:
    """Return an integer column of edges; ValueError if there is none."""
    if name not in columns:
        raise ValueError(f"column {name!r} of {edge_type}: not in the graph; there are {sorted(columns)}")
    values = columns[name]
    if values.dim() != 1 or values.is_floating_point() or values.dtype == torch.bool:
        found = f"{str(values.dtype).removeprefix('torch.')} of shape {tuple(values.shape)}"
        raise ValueError(
            f"column {name!r} of {edge_type} is {found}: relations are whole numbers, one per edge"
        )
    return values


def partner_ranks(csc: Csc, num_sources: int, nodes: Tensor | None, are_of_one_type: bool) -> Csc:
    """Return in row u the ranks of u's destinations, ascending and without duplicates.

    If both ends have the same node type, each node is also a partner of itself. `nodes` gives the node of
    each rank; None: the rank is the node.
    """
    csc.check()
    dtype = index_dtype(max(csc.num_rows, num_sources))
    destinations = csc.destinations(dtype=dtype)
    sources = csc.indices.to(dtype)
    if are_of_one_type:
        own = torch.arange(csc.num_rows, dtype=dtype)
        sources, destinations = torch.cat([sources, own]), torch.cat([destinations, own])
    if nodes is None and not are_of_one_type:  # destinations ascend and are ranks already
        return _rows_by_source(sources, destinations, num_sources, csc.num_rows)
    return ranks_by_source(sources, destinations, num_sources, csc.num_rows, nodes)


def related_ranks(
    csc: Csc, relations: Tensor, counts: tuple[int, int], nodes: Tensor | None, are_of_one_type: bool
) -> RelatedPartners:
    """Return the partner ranks of each source and relation; `counts` are of sources and destinations.

    If both ends have the same node type, each node is also a partner of itself by every relation.
    """
    csc.check()
    if relations.numel() and int(relations.min()) < 0:
        raise ValueError(f"relations: {int(relations.min())} is below 0; give relations from 0 on")
    count = 1 + (int(relations.max()) if relations.numel() else 0)
    keys, rows = torch.unique(csc.indices.long() * count + relations, return_inverse=True)
    destinations = csc.destinations().long()
    num_rows = keys.numel() + counts[0]
    if are_of_one_type:
        every = torch.arange(counts[0])
        rows = torch.cat([rows, torch.arange(keys.numel()), keys.numel() + every])
        destinations = torch.cat([destinations, keys // count, every])
    return RelatedPartners(ranks_by_source(rows, destinations, num_rows, counts[1], nodes), keys, count)


def ranks_by_source(
    sources: Tensor, destinations: Tensor, num_sources: int, num_destinations: int, nodes: Tensor | None
) -> Csc:
    """Return in row u the ranks of the destinations paired with source u, ascending, without duplicates."""
    dtype = index_dtype(max(num_destinations, num_sources))
    ranks = torch.arange(num_destinations, dtype=dtype)
    if nodes is not None:
        ranks[nodes] = torch.arange(num_destinations, dtype=dtype)
    by_rank = build_csc(sources.to(dtype), ranks[destinations.long()], num_sources, num_destinations)[0]
    ascending = torch.repeat_interleave(torch.arange(num_destinations, dtype=dtype), by_rank.indptr.diff())
    return _rows_by_source(by_rank.indices.to(dtype), ascending, num_sources, num_destinations)


def _rows_by_source(sources: Tensor, ranks: Tensor, num_sources: int, num_destinations: int) -> Csc:
    """Return in row u the ranks paired with source u, without duplicates; `ranks` ascend."""
    return _distinct(build_csc(ranks, sources, num_destinations, num_sources)[0])


def ranks_among(rows: Csc, chosen: Tensor, count: int) -> Csc:
    """Return the rows with only the chosen ranks, renumbered; `chosen` ascends."""
    new = torch.full((count,), -1, dtype=rows.indices.dtype)
    new[chosen] = torch.arange(chosen.numel(), dtype=rows.indices.dtype)
    ranks = new[rows.indices.long()]
    kept = torch.cat([rows.indptr.new_zeros(1), (ranks >= 0).cumsum(0)])
    return Csc(kept[rows.indptr], ranks[ranks >= 0])


def _distinct(rows: Csc) -> Csc:
    """Remove duplicates from rows that ascend."""
    is_first = torch.ones(rows.num_edges, dtype=torch.bool)
    torch.ne(rows.indices[1:], rows.indices[:-1], out=is_first[1:])
    is_first[rows.indptr[:-1][rows.indptr.diff() > 0]] = True
    kept = torch.cat([rows.indptr.new_zeros(1), is_first.cumsum(0)])
    return Csc(kept[rows.indptr], rows.indices[is_first])


Columns = Mapping[NodeType | EdgeType, Mapping[str, Tensor]]
Value = TypeVar("Value")
Weigher = float | str | None  # a power of the degree, a column of weights, or None: uniform
WEIGHT_ONE = 8  # bits: a node of degree 1 has weight 2^8


@dataclass(frozen=True)
class _Table:
    """Arrays for one kind of draw among the destinations of one edge type."""

    candidates: Candidates
    partners: Partners | None  # None unless draws are exact
    nodes: Tensor | None  # int64 (candidates), the node of each rank; None: ranks are nodes
    times: Tensor | None  # times of the candidates, ascending
    related: RelatedPartners | None = None  # of exact draws by relation: the rows of `partners`


class NegativeEdges(Protocol):
    """Implementers give in-degrees and partners for draws of negatives."""

    def in_degrees(self, edge_type: EdgeType) -> Tensor:
        """Return the in-degrees, int64 (destinations)."""
        ...

    def first_source(self, edge_type: EdgeType) -> int:
        """Return the id of the source in row 0 of `partners`."""
        ...

    def partners(self, edge_type: EdgeType, order: str | None, nodes: Tensor | None) -> Csc:
        """Return the partner ranks of each source; see `partner_ranks`.

        `nodes` gives the node of each rank. `order` names the column that `nodes` are ordered by.
        """
        ...

    def related(self, edge_type: EdgeType, column: str, nodes: Tensor | None) -> RelatedPartners:
        """Return the partner ranks of each source and relation, by a column of the edges."""
        ...


class NegativeTables:
    """Draws of negatives. Tables are built on the first draw and cached. Threads may share the object.

    `candidates` marks the nodes of a type that may be drawn, bool (nodes); of other types, all may be drawn.
    """

    def __init__(
        self,
        counts: Mapping[NodeType, int],
        original_ids: Mapping[NodeType, Tensor],
        columns: Columns,
        links: NegativeEdges,
        candidates: Mapping[NodeType, Tensor] = MappingProxyType({}),
    ) -> None:
        self._drawable = candidates
        self._counts = counts
        self._original_ids = original_ids
        self._columns = columns
        self._links = links
        self._lock = Lock()
        self._kept: dict[tuple[object, ...], object] = {}

    def draw(
        self, edge_type: EdgeType, negatives: DrawnNegatives, positives: Positives, key: DrawKey
    ) -> Tensor:
        """Draw negatives: int64 (links, per_positive), destinations; see GraphStore."""
        return all_drawn(self.drawn(edge_type, negatives, positives, key), edge_type, negatives, positives)

    def drawn(
        self, edge_type: EdgeType, negatives: DrawnNegatives, positives: Positives, key: DrawKey
    ) -> Tensor | NothingLeft:
        """Draw as `draw` does, or return a link without possible destinations."""
        table = self._table_of(edge_type, negatives, positives)
        limits = None
        if positives.until is not None and table.times is not None:
            limits = torch.searchsorted(table.times, positives.until, right=True)
        ranks = draw_negatives(
            NegativeDraw(
                table.candidates,
                table.partners,
                self._rows(edge_type, negatives, positives, table),
                positives.positions,
                negatives.per_positive,
                key,
                stream(0, edge_type),
                limits=limits,
            )
        )
        if isinstance(ranks, NothingLeft):
            return ranks
        return ranks if table.nodes is None else gather(table.nodes, ranks.flatten()).view(ranks.shape)

    def _rows(
        self, edge_type: EdgeType, negatives: DrawnNegatives, positives: Positives, table: _Table
    ) -> Tensor:
        """Return the row of each link in the table of partners."""
        if table.related is not None:
            assert positives.relations is not None
            return table.related.rows(positives.sources, positives.relations)
        return positives.sources - (self._links.first_source(edge_type) if negatives.exact else 0)

    def prepare(self, edge_type: EdgeType, negatives: DrawnNegatives, positives: Positives) -> None:
        """Build the tables for a draw with these arguments, unless they exist."""
        self._table_of(edge_type, negatives, positives)

    def _table_of(self, edge_type: EdgeType, negatives: DrawnNegatives, positives: Positives) -> _Table:
        column = positives.time_column if positives.until is not None else None
        if column is not None and column not in self._columns.get(edge_type[2], {}):
            column = None
        relation = positives.relation_column if positives.relations is not None else None
        with self._lock:
            return self._table(edge_type, negatives, column, relation)

    def _table(
        self, edge_type: EdgeType, negatives: DrawnNegatives, column: str | None, relation: str | None
    ) -> _Table:
        nodes, times = self._order_once(edge_type[2], column)
        weigher = _weigher(negatives)
        candidates = self._once(
            lambda: self._candidates(edge_type, weigher, nodes), "candidates", edge_type, weigher, column
        )
        partners, related = None, None
        if negatives.exact and relation is not None:
            related = self._once(
                lambda: self._links.related(edge_type, relation, nodes),
                "related",
                edge_type,
                column,
                relation,
            )
            ranks = related.ranks
            partners = self._once(
                lambda: self._partners(edge_type, ranks, candidates, column),
                "related partners", edge_type, weigher, column, relation,
            )  # fmt: skip
        elif negatives.exact:
            ranks = self._once(
                lambda: self._links.partners(edge_type, column, nodes), "ranks", edge_type, column
            )
            partners = self._once(
                lambda: self._partners(edge_type, ranks, candidates, column),
                "partners", edge_type, weigher, column,
            )  # fmt: skip
        drawable = self._once(
            lambda: _among(self._drawable.get(edge_type[2]), nodes), "drawable", edge_type[2], column
        )
        if drawable is not None:
            nodes = drawable if nodes is None else nodes[drawable]
            times = None if times is None else times[drawable]
        return _Table(candidates, partners, nodes, times, related)

    def _partners(
        self, edge_type: EdgeType, ranks: Csc, candidates: Candidates, column: str | None
    ) -> Partners:
        nodes, _ = self._order_once(edge_type[2], column)
        drawable = _among(self._drawable.get(edge_type[2]), nodes)
        if drawable is not None:
            ranks = ranks_among(ranks, drawable, self._counts[edge_type[2]])
        return Partners.of(ranks, candidates)

    def _order_once(self, node_type: NodeType, column: str | None) -> tuple[Tensor | None, Tensor | None]:
        original = self._original_ids.get(node_type)
        times = None if column is None else self._columns[node_type][column]
        return self._once(lambda: _ordered(original, times), "order", node_type, column)

    def _once(self, make: Callable[[], Value], *name: object) -> Value:
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]  # type: ignore[return-value]

    def _candidates(self, edge_type: EdgeType, weigher: Weigher, nodes: Tensor | None) -> Candidates:
        drawable = _among(self._drawable.get(edge_type[2]), nodes)
        count = self._counts[edge_type[2]] if drawable is None else drawable.numel()
        if weigher is None:
            return Candidates(count)
        if isinstance(weigher, str):
            weights = column_weights(edge_type, weigher, self._columns.get(edge_type[2], {}))
        else:
            weights = degree_weights(self._links.in_degrees(edge_type), weigher)
        weights = weights if nodes is None else weights[nodes]
        weights = weights if drawable is None else weights[drawable]
        return Candidates(count, torch.cat([weights.new_zeros(1), weights.cumsum(0)]))


def _among(drawable: Tensor | None, nodes: Tensor | None) -> Tensor | None:
    """Return the ranks of the nodes that may be drawn, ascending; None: all."""
    if drawable is None:
        return None
    return torch.nonzero(drawable if nodes is None else drawable[nodes]).squeeze(1)


def _ordered(original: Tensor | None, times: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Return the nodes sorted by time, ties by original id, and their times in that order."""
    nodes = None if original is None else original.argsort()
    if times is None:
        return nodes, None
    times, order = (times.long() if nodes is None else times.long()[nodes]).sort(stable=True)
    return (order if nodes is None else nodes[order]), times


@dataclass(frozen=True)
class WholeLinks:
    """Links of a graph with local edges."""

    edges: Mapping[EdgeType, Csc]
    counts: Mapping[NodeType, int]
    derived: Derived
    columns: Columns = field(default_factory=dict)

    def in_degrees(self, edge_type: EdgeType) -> Tensor:
        """Return the in-degree of every destination."""
        return self.edges[edge_type].degrees()

    def first_source(self, edge_type: EdgeType) -> int:
        """Return 0: every source has a row."""
        return 0

    def partners(self, edge_type: EdgeType, order: str | None, nodes: Tensor | None) -> Csc:
        """Return the partner ranks. They are computed once and stored in the graph's folder."""
        source, _, destination = edge_type
        counts = self.counts[source], self.counts[destination]

        def make() -> Csc:
            return partner_ranks(self.edges[edge_type], counts[0], nodes, source == destination)

        sources = partner_sources(edge_type, order)
        return kept_partners(self.derived, edge_type, by_column(order), counts, make, sources)

    def related(self, edge_type: EdgeType, column: str, nodes: Tensor | None) -> RelatedPartners:
        """Return the partner ranks of each source and relation, recomputed."""
        source, _, destination = edge_type
        values = number_column(edge_type, column, self.columns.get(edge_type, {})).long()
        counts = self.counts[source], self.counts[destination]
        return related_ranks(self.edges[edge_type], values, counts, nodes, source == destination)


def by_column(order: str | None) -> str:
    """Return the name suffix of arrays that follow an order of the destinations."""
    return "" if order is None else f".by-{order}"


def partner_sources(edge_type: EdgeType, order: str | None) -> list[str]:
    """Return the files that the partners of an edge type are computed from, if the graph has them."""
    of_nodes = (ORIGINAL_ID,) if order is None else (ORIGINAL_ID, order)
    of_edges = [edge_array(edge_type, name) for name in ("indptr", "indices")]
    return of_edges + [node_column(edge_type[2], name) for name in of_nodes]


def kept_partners(
    derived: Derived,
    edge_type: EdgeType,
    name: str,
    counts: tuple[int, int],
    make: Callable[[], Csc],
    sources: Sequence[str],
) -> Csc:
    """Return the CSC that `make` computes, from derived arrays if it was stored before.

    `counts` are the numbers of sources and destinations.
    """
    made = cache(make)

    def kept(array: str, count: int, dtype: torch.dtype, part: Callable[[], Tensor]) -> Tensor:
        file = edge_array(edge_type, f"{array}{name}").removesuffix(".npy")
        return derived.vector(file, count, part, sources, str(dtype).removeprefix("torch."))

    indptr = kept("partners_indptr", counts[0] + 1, torch.int64, lambda: made().indptr)
    dtype = index_dtype(max(counts))
    partners = kept("partners", max(int(indptr[-1]), 0), dtype, lambda: made().indices)
    return Csc(indptr, partners, counts[1])


def _weigher(negatives: DrawnNegatives) -> Weigher:
    match negatives:
        case DegreeNegatives():
            return negatives.power
        case WeightedNegatives():
            return negatives.column
        case _:
            return None


def degree_weights(degrees: Tensor, power: float) -> Tensor:
    """Return 2^8 x degree^power, rounded down, int64.

    Uses integers only, so that every machine gets the same weights.
    """
    distinct, which = torch.unique(degrees, return_inverse=True)
    fourths = int(power * 4)
    roots = [math.isqrt(math.isqrt(degree**fourths << 4 * WEIGHT_ONE)) for degree in distinct.tolist()]
    return torch.tensor(roots, dtype=torch.int64)[which]


def column_weights(edge_type: EdgeType, name: str, columns: Mapping[str, Tensor]) -> Tensor:
    """Return the destinations' weights as integers, int64, converted like the edge weights of one row."""
    node_type = edge_type[2]
    if name not in columns or columns[name].dim() != 1:
        there = sorted(other for other, column in columns.items() if column.dim() == 1)
        raise ValueError(
            f"negatives of {edge_type}: {node_type!r} nodes have no column {name!r} of one number each; "
            f"there are {there}"
        )
    count = columns[name].numel()
    row = Csc(torch.tensor([0, count]), torch.empty(count, dtype=torch.int32))
    try:
        sums = weight_sums(row, columns[name])
    except ValueError as error:
        raise ValueError(f"negatives of {edge_type}: {name!r} of {node_type!r} nodes: {error}") from error
    return sums.diff(prepend=sums.new_zeros(1))


def all_drawn(
    drawn: Tensor | NothingLeft, edge_type: EdgeType, negatives: DrawnNegatives, positives: Positives
) -> Tensor:
    """Return the negatives; ValueError names the link without possible negatives, and the remedy."""
    if isinstance(drawn, Tensor):
        return drawn
    source, _, destination = edge_type
    when = "" if positives.until is None else f" at time {int(positives.until[drawn.link])}"
    if not negatives.exact:
        raise ValueError(
            f"negatives of {edge_type}: no {destination!r} node{when} can be drawn by {negatives}; "
            "leave such links out, or give negatives with khop.GivenNegatives()"
        )
    node = int(positives.sources[drawn.link])
    raise ValueError(
        f"negatives of {edge_type}: {source!r} node {node} is connected to every "
        f"{destination!r} node that {negatives} could draw{when}; leave its links out, or use exact=False"
    )
