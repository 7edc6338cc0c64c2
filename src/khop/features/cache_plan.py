"""Which rows that lie elsewhere are worth keeping, within a budget of bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from khop.kernels.id_slots import IdSlots
from khop.schema import NodeType, Schema

_CALL_BYTES = 64 << 20  # rows that one call of filling brings, about


@dataclass(frozen=True, eq=False)
class CachePlan:
    """The rows to keep. Ranks plan different rows, and fill them in equally many calls."""

    ids: Mapping[NodeType, Tensor]  # int64 (kept), ascending
    columns: Mapping[NodeType, tuple[str, ...]]  # of the same types
    counts: Mapping[NodeType, int]  # nodes of each type
    calls: int  # of filling: given by the budget alone

    @classmethod
    def of(
        cls,
        schema: Schema,
        columns: Mapping[NodeType, Sequence[str]],
        visits: Mapping[NodeType, Tensor],
        budget_bytes: int,
    ) -> CachePlan:
        """The rows that batches need most often, as many as the budget has room for.

        `visits`: float (nodes) of each type, how often a batch needs a node; 0 for those that lie here. Of
        equal ones, those of earlier types and lower ids are kept. The budget holds the rows as they are
        stored and a good byte for every node of a type with columns, which finds them; nothing exceeds it,
        and what is left of it has no room for the next row.
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
    """The ids of each type, ascending. A byte of any row saves equally much traffic per visit."""
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
