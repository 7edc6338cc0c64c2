"""Places in messages of fixed size for rows that other ranks store."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class PeerSlots:
    """Ids sorted into slots by owner, and the place of each row. All tensors are on the device of the ids."""

    asked: Tensor  # int64 (owners, capacity): distinct ids ascending, counted from the owner's first; then 0
    counts: Tensor  # int64 (owners): distinct ids of each owner, with a slot or without; 0 for this rank
    is_own: Tensor  # bool (ids): the row is stored here
    places: Tensor  # int64 (ids): of own rows the position here, of others the slot owner * capacity + number


def peer_slots(ids: Tensor, bounds: Tensor, firsts: Tensor, own: int, capacity: int) -> PeerSlots:
    """Assign the distinct ids of each owner but this rank to its `capacity` slots, in ascending order.

    `ids` are int64 (n). `bounds` are int64 (owners + 1), on the device: owner q is asked for the ids from
    bounds[q] up to bounds[q + 1]. `firsts` are int64 (owners), the first id that each owner stores. An id
    that has no slot left gets the last one: then some count exceeds the capacity. Nothing waits for the
    device.
    """
    sorted_ids, order = ids.sort()
    is_first = torch.ones_like(sorted_ids)
    is_first[1:] = sorted_ids[1:] != sorted_ids[:-1]
    numbers = is_first.cumsum(0)  # from 1, over the distinct ids of all owners
    before = torch.cat([numbers.new_zeros(1), numbers])[torch.searchsorted(sorted_ids, bounds)]
    owners = torch.searchsorted(bounds[1:-1].contiguous(), sorted_ids, right=True)
    within = numbers - 1 - before[owners]
    is_own = owners == own
    room = firsts.numel() * capacity
    slots = torch.where(is_own | (within >= capacity), room, owners * capacity + within)
    asked = torch.zeros(room + 1, dtype=torch.int64, device=ids.device)
    asked.scatter_(0, slots, sorted_ids - firsts[owners])
    counts = before.diff()
    counts[own] = 0
    places = torch.where(is_own, sorted_ids - firsts[own], slots.clamp(max=room - 1))
    return PeerSlots(
        asked[:room].view(-1, capacity),
        counts,
        torch.empty_like(is_own).scatter_(0, order, is_own),
        torch.empty_like(places).scatter_(0, order, places),
    )
