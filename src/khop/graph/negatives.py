"""Negatives drawn from a graph whose edges lie in this process."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from khop.draw import DegreeNegatives, DrawKey, DrawnNegatives, Positives, WeightedNegatives, stream
from khop.graph.derived import Derived
from khop.graph.folder import ORIGINAL_ID
from khop.graph.layout import edge_array, node_column
from khop.kernels.build_csc import build_csc, index_dtype
from khop.kernels.csc import Csc
from khop.kernels.draw_negatives import Candidates, Partners, draw_negatives
from khop.kernels.draw_negatives import NothingLeft as NothingLeft
from khop.kernels.gather import gather
from khop.kernels.weight_sums import weight_sums
from khop.schema import EdgeType, NodeType

Columns = Mapping[NodeType | EdgeType, Mapping[str, Tensor]]
Value = TypeVar("Value")
Weigher = float | str | None  # a power of the degree, a column of weights, or nothing
WEIGHT_ONE = 8  # bits: a node of degree 1 weighs 2^8


@dataclass(frozen=True)
class _Table:
    """What draws of one kind among the destinations of one edge type need."""

    candidates: Candidates
    partners: Partners | None  # of exact draws
    nodes: Tensor | None  # int64 (candidates), the node of each rank; None: ranks are nodes
    times: Tensor | None  # of the candidates, ascending


class Links(Protocol):
    """What draws ask of edges."""

    def in_degrees(self, edge_type: EdgeType) -> Tensor:
        """int64 (destinations): how many edges lead to each."""
        ...

    def first_source(self, edge_type: EdgeType) -> int:
        """The id of the source that is row 0 of `partners`."""
        ...

    def partners(self, edge_type: EdgeType, order: str | None, nodes: Tensor | None) -> Csc:
        """See `partner_ranks`. `order` is the column by which `nodes`, the node of each rank, are ordered."""
        ...


class NegativeTables:
    """Draws negatives; what that needs is made at the first draw and kept. Threads may share it."""

    def __init__(
        self,
        counts: Mapping[NodeType, int],
        original_ids: Mapping[NodeType, Tensor],
        columns: Columns,
        links: Links,
    ) -> None:
        self._counts = counts
        self._original_ids = original_ids
        self._columns = columns
        self._links = links
        self._lock = Lock()
        self._kept: dict[tuple[object, ...], object] = {}

    def draw(
        self, edge_type: EdgeType, negatives: DrawnNegatives, positives: Positives, key: DrawKey
    ) -> Tensor:
        """int64 (links, per_positive), destinations; see NegativeStore."""
        return all_drawn(self.drawn(edge_type, negatives, positives, key), edge_type, negatives, positives)

    def drawn(
        self, edge_type: EdgeType, negatives: DrawnNegatives, positives: Positives, key: DrawKey
    ) -> Tensor | NothingLeft:
        """As `draw`, or the link for which nothing may be drawn."""
        table = self._table_of(edge_type, negatives, positives)
        limits = None
        if positives.until is not None and table.times is not None:
            limits = torch.searchsorted(table.times, positives.until, right=True)
        ranks = draw_negatives(
            table.candidates,
            table.partners,
            positives.sources - (self._links.first_source(edge_type) if negatives.exact else 0),
            positives.positions,
            negatives.per_positive,
            key,
            stream(0, edge_type),
            limits=limits,
        )
        if isinstance(ranks, NothingLeft):
            return ranks
        return ranks if table.nodes is None else gather(table.nodes, ranks.flatten()).view(ranks.shape)

    def prepare(self, edge_type: EdgeType, negatives: DrawnNegatives, positives: Positives) -> None:
        """Make now what a draw like this one needs and no draw before it has needed."""
        self._table_of(edge_type, negatives, positives)

    def _table_of(self, edge_type: EdgeType, negatives: DrawnNegatives, positives: Positives) -> _Table:
        column = positives.time_column if positives.until is not None else None
        if column is not None and column not in self._columns.get(edge_type[2], {}):
            column = None
        with self._lock:
            return self._table(edge_type, negatives, column)

    def _table(self, edge_type: EdgeType, negatives: DrawnNegatives, column: str | None) -> _Table:
        nodes, times = self._once(lambda: self._order(edge_type[2], column), "order", edge_type[2], column)
        weigher = _weigher(negatives)
        candidates = self._once(
            lambda: self._candidates(edge_type, weigher, nodes), "candidates", edge_type, weigher, column
        )
        partners = None
        if negatives.exact:
            ranks = self._once(
                lambda: self._links.partners(edge_type, column, nodes), "ranks", edge_type, column
            )
            partners = self._once(
                lambda: Partners.of(ranks, candidates), "partners", edge_type, weigher, column
            )
        return _Table(candidates, partners, nodes, times)

    def _once(self, make: Callable[[], Value], *name: object) -> Value:
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]  # type: ignore[return-value]

    def _order(self, node_type: NodeType, column: str | None) -> tuple[Tensor | None, Tensor | None]:
        """Nodes by time, those of one time by original id; and the times in that order."""
        original = self._original_ids.get(node_type)
        nodes = None if original is None else original.argsort()
        if column is None:
            return nodes, None
        times = self._columns[node_type][column].long()
        times, order = (times if nodes is None else times[nodes]).sort(stable=True)
        return (order if nodes is None else nodes[order]), times

    def _candidates(self, edge_type: EdgeType, weigher: Weigher, nodes: Tensor | None) -> Candidates:
        count = self._counts[edge_type[2]]
        if weigher is None:
            return Candidates(count)
        if isinstance(weigher, str):
            weights = column_weights(edge_type, weigher, self._columns.get(edge_type[2], {}))
        else:
            weights = degree_weights(self._links.in_degrees(edge_type), weigher)
        weights = weights if nodes is None else weights[nodes]
        return Candidates(count, torch.cat([weights.new_zeros(1), weights.cumsum(0)]))


@dataclass(frozen=True)
class WholeLinks:
    """What draws ask of edges that lie in this process."""

    edges: Mapping[EdgeType, Csc]
    counts: Mapping[NodeType, int]
    derived: Derived

    def in_degrees(self, edge_type: EdgeType) -> Tensor:
        """Of every destination."""
        return self.edges[edge_type].degrees()

    def first_source(self, edge_type: EdgeType) -> int:
        """All sources are rows."""
        return 0

    def partners(self, edge_type: EdgeType, order: str | None, nodes: Tensor | None) -> Csc:
        """Made once, and kept in the graph's folder."""
        source, _, destination = edge_type
        counts = self.counts[source], self.counts[destination]

        def make() -> Csc:
            return partner_ranks(self.edges[edge_type], counts[0], nodes, source == destination)

        sources = partner_sources(edge_type, order)
        return kept_partners(self.derived, edge_type, by_column(order), counts, make, sources)


def by_column(order: str | None) -> str:
    """The end of the name of arrays that follow an order of the destinations."""
    return "" if order is None else f".by-{order}"


def partner_sources(edge_type: EdgeType, order: str | None) -> list[str]:
    """The files that the partners of an edge type follow from, where a graph has them."""
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
    """What `make` gives, from the arrays that were derived once it was; so many sources and destinations."""
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
    """int64: 2^8 x degree^power, rounded down; by whole numbers alone, so that every machine has the same."""
    distinct, which = torch.unique(degrees, return_inverse=True)
    fourths = int(power * 4)
    roots = [math.isqrt(math.isqrt(degree**fourths << 4 * WEIGHT_ONE)) for degree in distinct.tolist()]
    return torch.tensor(roots, dtype=torch.int64)[which]


def column_weights(edge_type: EdgeType, name: str, columns: Mapping[str, Tensor]) -> Tensor:
    """int64: the destinations' weights as whole numbers, as those of the edges of one row are."""
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


def partner_ranks(csc: Csc, num_sources: int, nodes: Tensor | None, are_of_one_type: bool) -> Csc:
    """Row u: the ranks of the nodes that edges lead to from u, ascending, each once.

    Among nodes of one type a node counts as its own partner. `nodes` gives the node of each rank; None: the
    rank is the node.
    """
    csc.check()
    dtype = index_dtype(max(csc.num_rows, num_sources))
    destinations = csc.destinations(dtype=dtype)
    sources = csc.indices.to(dtype)
    if are_of_one_type:
        own = torch.arange(csc.num_rows, dtype=dtype)
        sources, destinations = torch.cat([sources, own]), torch.cat([destinations, own])
    in_order = nodes is None and not are_of_one_type
    return ranks_by_source(sources, destinations, num_sources, csc.num_rows, nodes, in_order)


def ranks_by_source(
    sources: Tensor,
    destinations: Tensor,
    num_sources: int,
    num_destinations: int,
    nodes: Tensor | None,
    in_order: bool = False,
) -> Csc:
    """Row u: the ranks of the destinations that stand beside source u, ascending, each once.

    `in_order`: the destinations ascend, and are ranks.
    """
    if not in_order:
        dtype = index_dtype(max(num_destinations, num_sources))
        ranks = torch.arange(num_destinations, dtype=dtype)
        if nodes is not None:
            ranks[nodes] = torch.arange(num_destinations, dtype=dtype)
        by_rank = build_csc(sources.to(dtype), ranks[destinations.long()], num_sources, num_destinations)[0]
        sources = by_rank.indices.to(dtype)
        destinations = torch.repeat_interleave(
            torch.arange(num_destinations, dtype=dtype), by_rank.indptr.diff()
        )
    rows = build_csc(destinations, sources, num_destinations, num_sources)[0]
    return _distinct(rows)


def _distinct(rows: Csc) -> Csc:
    """Rows that ascend, each entry once."""
    is_first = torch.ones(rows.num_edges, dtype=torch.bool)
    torch.ne(rows.indices[1:], rows.indices[:-1], out=is_first[1:])
    is_first[rows.indptr[:-1][rows.indptr.diff() > 0]] = True
    kept = torch.cat([rows.indptr.new_zeros(1), is_first.cumsum(0)])
    return Csc(kept[rows.indptr], rows.indices[is_first])


def all_drawn(
    drawn: Tensor | NothingLeft, edge_type: EdgeType, negatives: DrawnNegatives, positives: Positives
) -> Tensor:
    """The negatives; or ValueError, which says for which link nothing can be drawn, and what to do."""
    if isinstance(drawn, Tensor):
        return drawn
    source, _, destination = edge_type
    when = "" if positives.until is None else f" at time {int(positives.until[drawn.link])}"
    if not negatives.exact:
        raise ValueError(
            f"negatives of {edge_type}: no {destination!r} node{when} can be drawn by {negatives}; "
            "leave such links out, or bring negatives along by khop.GivenNegatives()"
        )
    node = int(positives.sources[drawn.link])
    raise ValueError(
        f"negatives of {edge_type}: {source!r} node {node} is connected to every "
        f"{destination!r} node that {negatives} could draw{when}; leave its links out, or take exact=False"
    )
