"""Counts of the rows that batches need of cached columns, and of those that a device's cache has."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from khop.kernels.gather import Copies
from khop.loading.source import CachedRows
from khop.schema import NodeType

NEEDED, CACHED = "needed_rows", "device_cache_rows"
Counted = Mapping[tuple[NodeType, str], Copies]


def nodes_in_cache(copies: Counted) -> dict[tuple[NodeType, str], Tensor]:
    """Return on the host for each pinned column with copies, bool (nodes), the rows that have one."""
    return {name: (of_column.slots >= 0).cpu() for name, of_column in copies.items()}


def counts_of_host(
    nodes: Mapping[NodeType, Tensor],
    rows: Mapping[NodeType, CachedRows],
    copied: Mapping[tuple[NodeType, str], Tensor],
) -> dict[str, float]:
    """Return the counts of a batch on the host.

    `rows` are cached rows of columns that the CPU gathers, `copied` is from `nodes_in_cache`.
    """
    needed = sum(nodes[t].numel() for t in rows) + sum(nodes[t].numel() for t, _ in copied)
    found = [of_type.rows.numel() for of_type in rows.values()]
    found += [int(is_copied[nodes[t]].sum()) for (t, _), is_copied in copied.items()]
    return {NEEDED: needed, CACHED: sum(found)}


class SlotCounts:
    """Counts of batches in pinned columns with copies on a device, made there: nothing waits.

    `write` counts the rows of a batch in the current stream; read `counts` once this work has ended.
    """

    def __init__(self, copies: Counted, device: torch.device) -> None:
        self._copies = copies
        self._found = torch.zeros(2, dtype=torch.int64, device=device)
        self._seen = torch.zeros(2, dtype=torch.int64, pin_memory=device.type != "cpu")

    def write(self, nodes: Mapping[NodeType, Tensor], live: Mapping[NodeType, Tensor]) -> None:
        """Count the first `live` nodes of each type, and those with a copy; `live` is int32 (1)."""
        if not self._copies:
            return
        self._found.zero_()
        for (node_type, _), copies in self._copies.items():
            ids = nodes[node_type]
            is_live = torch.arange(ids.numel(), device=ids.device) < live[node_type]
            has_copy = is_live & (copies.slots.index_select(0, ids) >= 0)
            self._found += torch.stack([is_live.sum(), has_copy.sum()])
        self._seen.copy_(self._found, non_blocking=True)

    def counts(self) -> dict[str, float]:
        """Return the counts of the last batch; none without a cache."""
        if not self._copies:
            return {}
        needed, cached = self._seen.tolist()
        return {NEEDED: needed, CACHED: cached}
