"""Which of the rows that are wanted lie elsewhere, and where each will lie once they are here."""

from __future__ import annotations

import torch
from torch import Tensor

import khop._core as _core


def remote_rows(
    ids: Tensor, first: int, end: int, *, slots: Tensor | None = None, kept: int = 0
) -> tuple[Tensor, Tensor]:
    """Of `ids`, int64, none negative: the place of each one's row, and those whose rows are to be asked for.

    Those of [first, end) are here, and of others `kept` rows, each at the slot that `slots` says; -1: not
    kept. What is asked for ascends, each once. Places number the rows that are here, kept and asked for, one
    after another.
    """
    if ids.device.type != "cpu":
        return remote_rows_reference(ids, first, end, slots=slots, kept=kept)
    return _core.remote_rows(ids.contiguous(), first, end, slots, kept)


def remote_rows_reference(
    ids: Tensor, first: int, end: int, *, slots: Tensor | None = None, kept: int = 0
) -> tuple[Tensor, Tensor]:
    """The same in plain torch, on any device."""
    slots = torch.full_like(ids, -1) if slots is None else slots
    is_here = (ids >= first) & (ids < end)
    is_asked = ~is_here & (slots < 0)
    asked, number = torch.unique(ids[is_asked], return_inverse=True)
    places = torch.where(is_here, ids - first, slots + end - first)
    places[is_asked] = number + end - first + kept
    return places, asked
