"""Local ids of a batch that grows hop by hop on a device: `khop.kernels.node_index` with a stamped table."""

from __future__ import annotations

import torch
from torch import Tensor

from khop.kernels.triton.node_table import (
    STAMP_LIMIT,
    Level,
    Numbering,
    assign,
    count_firsts,
    look_up,
    mark,
    num_blocks,
)


class DeviceNodeIndex:
    """The nodes of one batch; see `khop.kernels.node_index.LocalIds`.

    Its table takes 8 bytes per node of the graph. Ids must be nodes of the graph: kernels do not check them.
    The number of nodes is read from the device on request, once after each insertion.
    """

    def __init__(self, num_nodes: int, device: torch.device) -> None:
        self._num_nodes = num_nodes
        self._table = torch.zeros(num_nodes, dtype=torch.int64, device=device)
        self._stamp = torch.ones(1, dtype=torch.int64, device=device)
        self._overflow = torch.zeros(1, dtype=torch.int64, device=device)
        self._nodes = torch.empty(0, dtype=torch.int64, device=device)
        self._count = torch.zeros(1, dtype=torch.int32, device=device)
        self._batches = 1  # the stamp
        self._most = 0  # an upper bound of the number of nodes, known on the host
        self._known: int | None = 0  # the number, if it was read since the last insertion

    def insert(self, ids: Tensor) -> Tensor:
        """Return the local id, int32, of each id (int32 or int64). New ids get the next local ids."""
        local = torch.empty(ids.numel(), dtype=torch.int32, device=ids.device)
        if ids.numel() == 0:
            return local
        capacity = min(self._num_nodes, self._most + ids.numel())
        self._grow(capacity)
        numbering = Numbering(self._table, self._stamp, self._overflow, capacity)
        numbering.check_slots(ids.numel())
        firsts = torch.empty(num_blocks(ids.numel()), dtype=torch.int32, device=ids.device)
        count = torch.empty_like(self._count)
        ids = ids.contiguous()
        mark(numbering, ids)
        count_firsts(numbering, ids, firsts)
        assign(numbering, ids, firsts, Level(self._nodes, self._count, count, capacity))
        look_up(numbering, ids, local)
        self._count, self._most, self._known = count, capacity, None
        return local

    def nodes(self, start: int = 0) -> Tensor:
        """Return the global ids, int64, of local ids `start` and above, as a copy."""
        return self._nodes[start : len(self)].clone()

    def clear(self) -> None:
        """Remove all nodes, in constant time."""
        if self._batches == STAMP_LIMIT:
            self._table.zero_()
            self._batches = 0
        self._batches += 1
        self._stamp.fill_(self._batches)
        self._count = torch.zeros_like(self._count)
        self._most, self._known = 0, 0

    def __len__(self) -> int:
        if self._known is None:
            self._known = self._most = int(self._count)
        return self._known

    def _grow(self, capacity: int) -> None:
        if capacity > self._nodes.numel():
            wider = self._nodes.new_empty(max(capacity, 2 * self._nodes.numel()))
            wider[: self._nodes.numel()] = self._nodes
            self._nodes = wider
