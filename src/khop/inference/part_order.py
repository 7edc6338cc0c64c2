"""Order of nodes grouped by partition, so that the rank with a partition can compute its chunks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class PartOrder:
    """A permutation of rows, and its inverse."""

    order: Tensor | None = None  # int64 (rows); None: the given order

    @classmethod
    def of(cls, nodes: Tensor | None, bounds: tuple[int, ...]) -> PartOrder:
        """Order nodes by the partitions in `bounds`; None means all nodes, already in that order."""
        if nodes is None or len(bounds) == 2 or _is_ascending(nodes):
            return cls()
        return cls(nodes.argsort(stable=True))

    def there(self, rows: Tensor) -> Tensor:
        """Reorder rows from the order of the nodes to the grouped order."""
        return rows if self.order is None else rows[self.order]

    def back(self, rows: Tensor) -> Tensor:
        """Reorder rows from the grouped order back to the order of the nodes."""
        return rows if self.order is None else rows[self.order.argsort()]


def pieces_of(nodes: Tensor | None, bounds: tuple[int, ...]) -> tuple[int, ...]:
    """Return where each partition's nodes begin, and the end; () if the nodes are not in ascending order."""
    if nodes is None:
        return bounds
    if len(bounds) == 2 or not _is_ascending(nodes):
        return ()
    return tuple(torch.searchsorted(nodes, torch.tensor(bounds)).tolist())


def _is_ascending(nodes: Tensor) -> bool:
    return bool((nodes[1:] >= nodes[:-1]).all())
