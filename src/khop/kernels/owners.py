"""Grouping of rows by owner, and stitching of the owners' draws in the order of the rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

import khop._core as _core
from khop.kernels.memory import pooled

Drawn = tuple[Tensor, Tensor, Tensor | None]  # offsets, int64 (rows + 1); nodes, int32 or int64; edges, int64


def owner_order(ids: Tensor, bounds: Sequence[int]) -> tuple[tuple[int, ...], Tensor | None]:
    """Return the number of `ids` of each owner, and the rows owner by owner; None if already in this order.

    Owner q has the ids from bounds[q] up to bounds[q + 1]; `bounds` ascend, and every id has an owner.
    """
    if ids.device.type != "cpu":
        return owner_order_reference(ids, bounds)
    counts, order = _core.owner_order(ids.long().contiguous(), torch.tensor(bounds))
    return tuple(counts.tolist()), order


def owner_order_reference(ids: Tensor, bounds: Sequence[int]) -> tuple[tuple[int, ...], Tensor | None]:
    """The same as `owner_order` in plain torch, on any device."""
    inner = torch.tensor(bounds[1:-1], dtype=torch.int64, device=ids.device)
    owners = torch.searchsorted(inner, ids.long(), right=True)
    counts = tuple(torch.bincount(owners, minlength=len(bounds) - 1).tolist())
    order = owners.argsort(stable=True)
    return counts, None if bool((owners.diff() >= 0).all()) else order


def join_drawn(drawn: Sequence[Drawn], order: Tensor | None) -> Drawn:
    """Join the owners' draws, one piece per owner, into one draw of all rows. `order` is from `owner_order`.

    Nodes are 64-bit if an owner's are. Edges are present if every owner has them.
    """
    if drawn[0][1].device.type != "cpu":
        return join_drawn_reference(drawn, order)
    is_wide = any(nodes.dtype == torch.int64 for _, nodes, _ in drawn)
    count = sum(nodes.numel() for _, nodes, _ in drawn)
    nodes = pooled((count,), torch.int64 if is_wide else torch.int32)
    offsets, edges = _core.join_drawn(
        [
            (offsets.contiguous(), of_owner.contiguous(), None if edges is None else edges.contiguous())
            for offsets, of_owner, edges in drawn
        ],
        order,
        nodes,
    )
    return offsets, nodes, edges


def join_drawn_reference(drawn: Sequence[Drawn], order: Tensor | None) -> Drawn:
    """The same as `join_drawn` in plain torch, on any device."""
    degrees = torch.cat([offsets.diff() for offsets, _, _ in drawn])
    nodes = torch.cat([nodes for _, nodes, _ in drawn])
    has_edges = all(edges is not None for _, _, edges in drawn)
    edges = torch.cat([edges for _, _, edges in drawn if edges is not None]) if has_edges else None
    starts = degrees.cumsum(0) - degrees
    if order is not None:
        places = torch.empty_like(order)
        places[order] = torch.arange(order.numel(), device=order.device)
        starts, degrees = starts[places], degrees[places]
    offsets = torch.cat([degrees.new_zeros(1), degrees.cumsum(0)])
    wanted = torch.repeat_interleave(starts - offsets[:-1], degrees) + torch.arange(
        nodes.numel(), device=nodes.device
    )
    return offsets, nodes[wanted], None if edges is None else edges[wanted]
