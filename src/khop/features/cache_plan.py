"""Choice of the remote rows to cache, within a budget of bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from khop.kernels.id_slots import IdSlots
from khop.schema import NodeType, Schema

_CALL_BYTES = 64 << 20  # approximate bytes of the rows that one fill call gathers


@dataclass(frozen=True, eq=False)
class CachePlan:
    """The rows to cache. Ranks plan different rows and fill them in the same number of calls."""

    ids: Mapping[NodeType, Tensor]  # int64 (cached rows), ascending
    columns: Mapping[NodeType, tuple[str, ...]]  # of the same types
    counts: Mapping[NodeType, int]  # nodes of each type
    calls: int  # number of fill calls; depends on the budget alone

    @classmethod
    def of(
        cls,
        schema: Schema,
        columns: Mapping[NodeType, Sequence[str]],
        visits: Mapping[NodeType, Tensor],
        budget_bytes: int,
    ) -> CachePlan:
        """Choose the rows that batches need most often, within the budget.

        `visits` is float (nodes) for each type: how often a batch needs each node; 0 for local nodes. Ties go
        to earlier types, then to lower ids. The budget covers the rows as stored, and a little over one byte
        per node of each type with columns, for the lookup table. The plan never exceeds the budget, and the
        remainder has no room for the next row.
        """
        if budget_bytes < 0:
            raise ValueError(f"a cache of {budget_bytes} bytes: must be 0 or more")
        row_bytes = {t: _row_bytes(schema, t, names) for t, names in columns.items() if names}
        counts = {t: visits[t].numel() for t in row_bytes}
        room = budget_bytes - sum(IdSlots.bytes_for(count) for count in counts.values())
        kept = _most_visited({t: visits[t] for t in row_bytes}, row_bytes, room)
        calls = max(1, math.ceil(budget_bytes / _CALL_BYTES))
        return cls(kept, {t: tuple(columns[t]) for t in row_bytes}, counts, calls)


def _most_visited(
    visits: Mapping[NodeType, Tensor], row_bytes: Mapping[NodeType, int], room: int
) -> dict[NodeType, Tensor]:
    """Return the ids to cache of each type, ascending.

    A byte of any row saves the same traffic per visit.
    """
    candidates = {t: of_type.nonzero().flatten() for t, of_type in visits.items()}
    scores = torch.cat([torch.empty(0), *(visits[t][ids].double() for t, ids in candidates.items())])
    sizes = [torch.full((ids.numel(),), row_bytes[t]) for t, ids in candidates.items()]
    order = scores.argsort(descending=True, stable=True)
    spent = torch.cat([torch.empty(0, dtype=torch.int64), *sizes])[order].cumsum(0)
    chosen = torch.zeros(scores.numel(), dtype=torch.bool)
    chosen[order[: int(torch.searchsorted(spent, room, right=True))]] = True
    by_type = chosen.split_with_sizes([ids.numel() for ids in candidates.values()])
    return {t: ids[of_type] for (t, ids), of_type in zip(candidates.items(), by_type, strict=True)}


def _row_bytes(schema: Schema, node_type: NodeType, names: Sequence[str]) -> int:
    specs = [schema.column(node_type, name) for name in names]
    return sum(math.prod(spec.shape) * getattr(torch, spec.dtype).itemsize for spec in specs)
