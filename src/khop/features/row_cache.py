"""Remote rows cached on this rank, because many batches need them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from khop.features.cache_plan import CachePlan
from khop.features.store import FeatureStore, Rows
from khop.features.table import FeatureTable
from khop.kernels.id_slots import IdSlots
from khop.schema import NodeType, Schema


@dataclass(frozen=True, eq=False)
class RowCache:
    """Complete columns of some ids of each type. The cache never changes, so threads may share it.

    A gather looks in the cache first and asks the owner only for missing rows. Cached rows equal the owner's
    rows bit for bit and are kept as stored, so a cache changes no batch.
    """

    slots: Mapping[NodeType, IdSlots]  # on the host, where the requests to other ranks are made
    rows: FeatureTable  # by slot; on the host or on a device

    @classmethod
    def filled(
        cls, plan: CachePlan, source: FeatureStore, schema: Schema, device: torch.device | str = "cpu"
    ) -> RowCache:
        """Gather the rows of a plan from `source` in `plan.calls` calls, into memory of `device`."""
        pieces = {t: ids.tensor_split(plan.calls) for t, ids in plan.ids.items()}
        columns: dict[NodeType, dict[str, Tensor]] = {t: {} for t in plan.ids}
        ends = dict.fromkeys(plan.ids, 0)
        for call in range(plan.calls):
            gathered = source.gather({t: Rows(of[call], plan.columns[t]) for t, of in pieces.items()})
            for node_type, ids in plan.ids.items():
                begin = ends[node_type]
                ends[node_type] += pieces[node_type][call].numel()
                for name, rows in gathered[node_type].items():
                    room = columns[node_type].setdefault(name, _room(ids, rows, device))
                    room[begin : ends[node_type]] = rows
        slots = {t: IdSlots.of(ids, plan.counts[t]) for t, ids in plan.ids.items() if ids.numel()}
        return cls(slots, FeatureTable.of(schema, {t: columns[t] for t in slots}))

    @property
    def num_bytes(self) -> int:
        """Bytes of the rows and of the lookup tables."""
        columns = [column for of_type in self.rows.columns.values() for column in of_type.values()]
        found_by = [tensor for of in self.slots.values() for tensor in (of.places, of.first_slots)]
        return sum(tensor.numel() * tensor.element_size() for tensor in (*columns, *found_by))

    def covers(self, node_type: NodeType, columns: tuple[str, ...]) -> bool:
        """Return True if the cache has all of these columns for its rows."""
        return node_type in self.slots and set(columns) <= set(self.rows.columns[node_type])

    def find(self, node_type: NodeType, ids: Tensor) -> Tensor:
        """Return int64 (n): the slot in `rows` of each id, or -1 if the id is not cached."""
        return self.slots[node_type].find(ids)


def _room(ids: Tensor, rows: Tensor, device: torch.device | str) -> Tensor:
    return torch.empty((ids.numel(), *rows.shape[1:]), dtype=rows.dtype, device=device)
