"""Negative ends as torch_geometric draws them: any node, by weight or alike, no later than the link."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from khop.draw import DrawKey
from khop.kernels.philox import WORD, philox, reduce_wide

_UNIT = 2.0**-53


@dataclass(frozen=True)
class Slots:
    """The negatives of a batch: negative i belongs to link i modulo the number of links."""

    num_links: int
    amount: float  # negatives per link
    position: int  # of the first link in the epoch's global order
    key: DrawKey

    @property
    def count(self) -> int:
        """Of the batch."""
        return math.ceil(self.num_links * self.amount)

    def words(self, end: int) -> Tensor:
        """Four random words per negative, for its source (end 0) or destination (end 1)."""
        number = torch.arange(self.count)
        position = self.position + number % max(self.num_links, 1)
        slot = number // max(self.num_links, 1)
        ends = torch.full_like(number, end)
        return philox(self.key.value, torch.stack([position & WORD, position >> 32, ends, slot], dim=1))


@dataclass(frozen=True, eq=False)
class NegativeNodes:
    """The nodes of one type to draw from."""

    count: int
    weights: Tensor | None = None  # float (nodes)
    times: Tensor | None = None  # integers (nodes)

    def __post_init__(self) -> None:
        if self.weights is not None and self.weights.numel() != self.count:
            raise ValueError(
                "The 'weight' attribute in 'NegativeSampling' needs to match the number of nodes "
                f"{self.count} (got {self.weights.numel()})"
            )

    def drawn(self, words: Tensor, until: Tensor | None) -> Tensor:
        """int64: one node per row of words, not later than `until` (one each) where nodes have times.

        A link that no node is early enough for gets the earliest there is, as in torch_geometric.
        """
        bound = torch.full((words.shape[0],), self.count)
        if self.times is not None and until is not None:
            bound = torch.searchsorted(self.times[self._order], until, right=True).clamp(min=1)
        if self.weights is None:
            chosen = reduce_wide(words[:, 0], words[:, 1], bound)
        else:
            unit = ((words[:, 0] << 21) + (words[:, 1] >> 11)) * _UNIT
            chosen = torch.searchsorted(self._sums, unit * self._sums[bound - 1], right=True)
            chosen = torch.minimum(chosen, bound - 1)
        return self._order[chosen] if self.times is not None else chosen

    @cached_property
    def _order(self) -> Tensor:
        """The nodes, earliest first."""
        return torch.arange(self.count) if self.times is None else self.times.argsort(stable=True)

    @cached_property
    def _sums(self) -> Tensor:
        """Of the weights, in that order."""
        assert self.weights is not None
        return self.weights[self._order].double().cumsum(0)
