"""Nodes in an order that keeps those of a part together, so that who holds the part can take their chunks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class PartOrder:
    """An order of some rows, and the way back."""

    order: Tensor | None = None  # int64 (rows); None: as they are

    @classmethod
    def of(cls, nodes: Tensor | None, bounds: tuple[int, ...]) -> PartOrder:
        """By parts, which `bounds` keep apart; None stands for all nodes, which are in it."""
        if nodes is None or len(bounds) == 2 or _is_ascending(nodes):
            return cls()
        return cls(nodes.argsort(stable=True))

    def there(self, rows: Tensor) -> Tensor:
        """Rows that stand as the nodes did, in the order."""
        return rows if self.order is None else rows[self.order]

    def back(self, rows: Tensor) -> Tensor:
        """Rows of the order, as the nodes stood."""
        return rows if self.order is None else rows[self.order.argsort()]


def pieces_of(nodes: Tensor | None, bounds: tuple[int, ...]) -> tuple[int, ...]:
    """Where the nodes of each part begin among some, and the last ones end; (): they are in another order."""
    if nodes is None:
        return bounds
    if len(bounds) == 2 or not _is_ascending(nodes):
        return ()
    return tuple(torch.searchsorted(nodes, torch.tensor(bounds)).tolist())


def _is_ascending(nodes: Tensor) -> bool:
    return bool((nodes[1:] >= nodes[:-1]).all())
