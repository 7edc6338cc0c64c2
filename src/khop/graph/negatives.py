"""Negatives drawn from a graph whose edges lie in this process."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import TypeVar

import torch
from torch import Tensor

from khop.draw import DegreeNegatives, DrawKey, DrawnNegatives, Positives, WeightedNegatives, stream
from khop.graph.derived import Derived
from khop.graph.layout import edge_array
from khop.kernels.build_csc import build_csc, index_dtype
from khop.kernels.csc import Csc
from khop.kernels.draw_negatives import Candidates, NothingLeft, Partners, draw_negatives
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


class NegativeTables:
    """Draws negatives; what that needs is made at the first draw and kept. Threads may share it."""

    def __init__(
        self,
        edges: Mapping[EdgeType, Csc],
        counts: Mapping[NodeType, int],
        original_ids: Mapping[NodeType, Tensor],
        columns: Columns,
        derived: Derived,
    ) -> None:
        self._edges = edges
        self._counts = counts
        self._original_ids = original_ids
        self._columns = columns
        self._derived = derived
        self._lock = Lock()
        self._kept: dict[tuple[object, ...], object] = {}

    def draw(
        self, edge_type: EdgeType, negatives: DrawnNegatives, positives: Positives, key: DrawKey
    ) -> Tensor:
        """int64 (links, per_positive), destinations; see NegativeStore."""
        column = positives.time_column if positives.until is not None else None
        if column is not None and column not in self._columns.get(edge_type[2], {}):
            column = None
        with self._lock:
            table = self._table(edge_type, negatives, column)
        limits = None
        if positives.until is not None and table.times is not None:
            limits = torch.searchsorted(table.times, positives.until, right=True)
        ranks = draw_negatives(
            table.candidates,
            table.partners,
            positives.sources,
            positives.positions,
            negatives.per_positive,
            key,
            stream(0, edge_type),
            limits=limits,
        )
        if isinstance(ranks, NothingLeft):
            raise _nothing_left(edge_type, negatives, positives, ranks.link)
        return ranks if table.nodes is None else gather(table.nodes, ranks.flatten()).view(ranks.shape)

    def _table(self, edge_type: EdgeType, negatives: DrawnNegatives, column: str | None) -> _Table:
        nodes, times = self._once(lambda: self._order(edge_type[2], column), "order", edge_type[2], column)
        weigher = _weigher(negatives)
        candidates = self._once(
            lambda: self._candidates(edge_type, weigher, nodes), "candidates", edge_type, weigher, column
        )
        partners = None
        if negatives.exact:
            ranks = self._once(lambda: self._partners(edge_type, column, nodes), "ranks", edge_type, column)
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
            weights = degree_weights(self._edges[edge_type].indptr.diff(), weigher)
        weights = weights if nodes is None else weights[nodes]
        return Candidates(count, torch.cat([weights.new_zeros(1), weights.cumsum(0)]))

    def _partners(self, edge_type: EdgeType, column: str | None, nodes: Tensor | None) -> Csc:
        source, _, destination = edge_type
        counts, order = self._counts, "" if column is None else f".by-{column}"

        @cache
        def made() -> Csc:
            return partner_ranks(self._edges[edge_type], counts[source], nodes, source == destination)

        def kept(array: str, count: int, dtype: torch.dtype, make: Callable[[], Tensor]) -> Tensor:
            name = edge_array(edge_type, f"{array}{order}").removesuffix(".npy")
            return self._derived.vector(name, count, make, str(dtype).removeprefix("torch."))

        dtype = index_dtype(max(counts[source], counts[destination]))
        indptr = kept("partners_indptr", counts[source] + 1, torch.int64, lambda: made().indptr)
        return Csc(indptr, kept("partners", int(indptr[-1]), dtype, lambda: made().indices))


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
    dtype = index_dtype(max(csc.num_rows, num_sources))
    destinations = torch.repeat_interleave(
        torch.arange(csc.num_rows, dtype=dtype), csc.indptr.diff(), output_size=csc.num_edges
    )
    sources = csc.indices.to(dtype)
    if are_of_one_type or nodes is not None:
        ranks = torch.arange(csc.num_rows, dtype=dtype)
        if nodes is not None:
            ranks[nodes] = torch.arange(csc.num_rows, dtype=dtype)
        if are_of_one_type:
            own = torch.arange(csc.num_rows, dtype=dtype)
            sources, destinations = torch.cat([sources, own]), torch.cat([destinations, own])
        by_rank = build_csc(sources, ranks[destinations.long()], num_sources, csc.num_rows)[0]
        sources = by_rank.indices.to(dtype)
        destinations = torch.repeat_interleave(ranks.sort()[0], by_rank.indptr.diff())
    rows = build_csc(destinations, sources, csc.num_rows, num_sources)[0]
    return _distinct(rows)


def _distinct(rows: Csc) -> Csc:
    """Rows that ascend, each entry once."""
    is_first = torch.ones(rows.num_edges, dtype=torch.bool)
    torch.ne(rows.indices[1:], rows.indices[:-1], out=is_first[1:])
    is_first[rows.indptr[:-1][rows.indptr.diff() > 0]] = True
    kept = torch.cat([rows.indptr.new_zeros(1), is_first.cumsum(0)])
    return Csc(kept[rows.indptr], rows.indices[is_first])


def _nothing_left(
    edge_type: EdgeType, negatives: DrawnNegatives, positives: Positives, link: int
) -> ValueError:
    source, _, destination = edge_type
    when = "" if positives.until is None else f" at time {int(positives.until[link])}"
    if not negatives.exact:
        return ValueError(
            f"negatives of {edge_type}: no {destination!r} node{when} can be drawn by {negatives}; "
            "leave such links out, or bring negatives along by khop.GivenNegatives()"
        )
    return ValueError(
        f"negatives of {edge_type}: {source!r} node {int(positives.sources[link])} is connected to every "
        f"{destination!r} node that {negatives} could draw{when}; leave its links out, or take exact=False"
    )
