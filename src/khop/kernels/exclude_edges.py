"""Removal of some drawn edges: keeps a batch's target links out of its messages."""

from __future__ import annotations

import torch
from torch import Tensor

import khop._core as _core
from khop.draw import Neighbors


def exclude_edges(found: Neighbors, rows: Tensor, excluded: Tensor) -> Neighbors:
    """Remove from `found` the edges with ends in a column of `excluded`, int64 (2, pairs), sources first.

    `rows` are the destinations, int64 (frontier). All parallel edges between two such ends are removed. The
    other edges keep their order. Runs without the GIL.
    """
    _check(found, rows, excluded)
    excluded = excluded.to(rows.device)
    if rows.device.type != "cpu":
        return exclude_edges_reference(found, rows, excluded)
    if found.weights is None:
        return Neighbors(*_kept(found, found.edges, rows, excluded))
    # With positions as ids, the core gives the places of all else that an edge has.
    offsets, nodes, kept = _kept(found, torch.arange(found.nodes.numel()), rows, excluded)
    assert kept is not None
    edges = None if found.edges is None else found.edges[kept]
    return Neighbors(offsets, nodes, edges, found.weights[kept])


def _kept(
    found: Neighbors, ids: Tensor | None, rows: Tensor, excluded: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return offsets, sources and ids of the edges to keep."""
    kept: tuple[Tensor, Tensor, Tensor | None] = _core.exclude_edges(
        found.offsets.contiguous(),
        found.nodes.contiguous(),
        None if ids is None else ids.contiguous(),
        rows.contiguous(),
        excluded[0].contiguous(),
        excluded[1].contiguous(),
    )
    return kept


def exclude_edges_reference(found: Neighbors, rows: Tensor, excluded: Tensor) -> Neighbors:
    """The same as `exclude_edges` in plain torch, on any device."""
    lengths = found.offsets.diff()
    row_of_edge = torch.repeat_interleave(torch.arange(rows.numel(), device=rows.device), lengths)
    drawn = torch.stack([found.nodes.long(), rows[row_of_edge]])
    _, numbers = torch.unique(torch.cat([excluded, drawn], dim=1), dim=1, return_inverse=True)
    pairs = excluded.shape[1]
    keep = ~torch.isin(numbers[pairs:], numbers[:pairs])
    kept_per_row = torch.bincount(row_of_edge[keep], minlength=rows.numel())
    offsets = torch.cat([kept_per_row.new_zeros(1), kept_per_row.cumsum(0)])
    edges, weights = (None if each is None else each[keep] for each in (found.edges, found.weights))
    return Neighbors(offsets, found.nodes[keep], edges, weights)


def _check(found: Neighbors, rows: Tensor, excluded: Tensor) -> None:
    if excluded.dtype != torch.int64 or excluded.dim() != 2 or excluded.shape[0] != 2:
        raise ValueError(f"excluded is {excluded.dtype} {tuple(excluded.shape)}: must be int64 (2, pairs)")
    if rows.dtype != torch.int64 or found.offsets.shape != (rows.numel() + 1,):
        raise ValueError(
            f"rows are {rows.dtype} {tuple(rows.shape)}: must be int64 ({found.offsets.numel() - 1}), "
            "one for each row of the draw"
        )
