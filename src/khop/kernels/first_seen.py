"""Distinct 64-bit keys numbered in first-seen order, in torch, on any device."""

from __future__ import annotations

import torch
from torch import Tensor


class FirstSeen:
    """Keys and their numbers 0, 1, 2, ... Reads the number of distinct keys on the host at each insertion."""

    def __init__(self, device: torch.device) -> None:
        self._keys = torch.empty(0, dtype=torch.int64, device=device)

    def insert(self, keys: Tensor) -> Tensor:
        """Return the number, int32, of each key, int64 (n). New keys get the next numbers."""
        known = self._keys.numel()
        every = torch.cat([self._keys, keys])
        distinct, places = torch.unique(every, return_inverse=True)
        at = torch.arange(every.numel(), device=every.device)
        first = torch.full_like(distinct, every.numel()).scatter_reduce(0, places, at, "amin")
        order = first.argsort()
        number = torch.empty_like(order)
        number[order] = torch.arange(order.numel(), device=every.device)
        self._keys = every[first[order]]
        return number[places[known:]].int()

    def keys(self, start: int = 0) -> Tensor:
        """Return the keys, int64, of numbers `start` and above, as a copy."""
        return self._keys[start:].clone()

    def clear(self) -> None:
        """Remove all keys."""
        self._keys = self._keys[:0]

    def __len__(self) -> int:
        return self._keys.numel()
