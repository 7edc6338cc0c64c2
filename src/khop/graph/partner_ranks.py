"""Partners of each source as ranks of candidates: the nodes that exact negatives leave out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from khop.kernels.build_csc import build_csc, index_dtype
from khop.kernels.csc import Csc
from khop.schema import EdgeType


@dataclass(frozen=True)
class RelatedPartners:
    """The partner ranks of each pair of a source and a relation.

    Row i belongs to the i-th pair. Further rows, one per source, are for sources without such an edge.
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
    """Return a column of whole numbers of edges; ValueError if there is no such column."""
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

    If both ends have the same node type, a node counts as its own partner. `nodes` gives the node of each
    rank; None: the rank is the node.
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

    If both ends have the same node type, a node counts as its own partner by every relation.
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
    """Return the rows with the chosen ranks alone, numbered anew; `chosen` ascends."""
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
