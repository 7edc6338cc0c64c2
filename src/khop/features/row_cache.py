"""Rows that lie elsewhere and are kept here, because many batches need them."""

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
    """Whole columns of some ids of each type. It never changes, so threads may share it.

    Whoever gathers asks it first, and the owner only for what it does not have. Its rows are those of the
    owner, bit for bit and as they are stored: a cache changes no batch.
    """

    slots: Mapping[NodeType, IdSlots]  # on the host, where it is decided what to ask others for
    rows: FeatureTable  # by slot; on the host or on a device

    @classmethod
    def empty(cls) -> RowCache:
        """Nothing is kept."""
        return cls({}, FeatureTable({}))

    @classmethod
    def filled(
        cls, plan: CachePlan, source: FeatureStore, schema: Schema, device: torch.device | str = "cpu"
    ) -> RowCache:
        """The rows of a plan, gathered from `source` in `plan.calls` calls, in memory of `device`."""
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
        """Memory of the rows and of what finds them."""
        columns = [column for of_type in self.rows.columns.values() for column in of_type.values()]
        found_by = [tensor for of in self.slots.values() for tensor in (of.places, of.first_slots)]
        return sum(tensor.numel() * tensor.element_size() for tensor in (*columns, *found_by))

    def covers(self, node_type: NodeType, columns: tuple[str, ...]) -> bool:
        """Whether it has all of these columns of the rows that it keeps."""
        return node_type in self.slots and set(columns) <= set(self.rows.columns[node_type])

    def find(self, node_type: NodeType, ids: Tensor) -> Tensor:
        """int64 (n): where in `rows` the row of each id is, or -1: not kept."""
        return self.slots[node_type].find(ids)


def _room(ids: Tensor, rows: Tensor, device: torch.device | str) -> Tensor:
    return torch.empty((ids.numel(), *rows.shape[1:]), dtype=rows.dtype, device=device)
