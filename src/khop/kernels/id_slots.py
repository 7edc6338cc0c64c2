"""Lookup of row positions by id, for a small subset of a large range of ids."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from khop.kernels.checks import check_ids

_BLOCK = 128  # ids per first slot; offsets within a block are below it
_NONE = 255


@dataclass(frozen=True, eq=False)
class IdSlots:
    """Slots 0, 1, 2, ... of ascending ids in [0, count). Threads may share it.

    A lookup reads one byte and one number per id, in any order. The table takes one byte for every id, used
    or not, and eight for every 128 of them.
    """

    places: Tensor  # uint8 (count): the slot of an id within its block
    first_slots: Tensor  # int64 (blocks)

    @classmethod
    def of(cls, ids: Tensor, count: int) -> IdSlots:
        """Build the slots of `ids`, int64, ascending, each once; ValueError for ids outside [0, count)."""
        check_ids(ids, count, "kept")
        if bool((ids.diff() <= 0).any()):
            raise ValueError("kept ids must ascend, each once; pass ids.unique()")
        blocks = ids // _BLOCK
        per_block = torch.bincount(blocks, minlength=-(-count // _BLOCK))
        first_slots = per_block.cumsum(0) - per_block
        places = torch.full((count,), _NONE, dtype=torch.uint8)
        places[ids] = (torch.arange(ids.numel()) - first_slots[blocks]).to(torch.uint8)
        return cls(places, first_slots)

    @staticmethod
    def bytes_for(count: int) -> int:
        """Return the bytes of memory for slots of any ids in [0, count)."""
        return count + 8 * -(-count // _BLOCK)

    def find(self, ids: Tensor) -> Tensor:
        """Return int64 (n): the slot of each id of [0, count), or -1."""
        check_ids(ids, self.places.numel(), "wanted")
        places = self.places[ids]
        slots = self.first_slots[ids.div(_BLOCK, rounding_mode="floor")] + places
        return slots.masked_fill_(places == _NONE, -1)
