"""Remote rows to request for given ids, and the place of each row once they have arrived."""

from __future__ import annotations

import torch
from torch import Tensor

import khop._core as _core


def remote_rows(
    ids: Tensor, first: int, end: int, *, slots: Tensor | None = None, kept: int = 0
) -> tuple[Tensor, Tensor]:
    """Return the place of each row of `ids` (int64, none negative), and the ids of the rows to request.

    Rows of ids in [first, end) are local. Of the others, `kept` rows are cached, each at its slot in
    `slots`; -1: not cached. The ids to request ascend without duplicates. Places count the local, then the
    cached, then the requested rows.
    """
    if ids.device.type != "cpu":
        return remote_rows_reference(ids, first, end, slots=slots, kept=kept)
    return _core.remote_rows(ids.contiguous(), first, end, slots, kept)


def remote_rows_reference(
    ids: Tensor, first: int, end: int, *, slots: Tensor | None = None, kept: int = 0
) -> tuple[Tensor, Tensor]:
    """The same as `remote_rows` in plain torch, on any device."""
    slots = torch.full_like(ids, -1) if slots is None else slots
    is_here = (ids >= first) & (ids < end)
    is_asked = ~is_here & (slots < 0)
    asked, number = torch.unique(ids[is_asked], return_inverse=True)
    places = torch.where(is_here, ids - first, slots + end - first)
    places[is_asked] = number + end - first + kept
    return places, asked
