"""Seeds go to ranks that hold them, as far as shares stay equal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from khop.schema import NodeType


@dataclass(frozen=True, eq=False)
class SeedAffinity:
    """Which ranks hold which nodes: contiguous parts of the ids, each with contiguous ranks."""

    bounds: Mapping[NodeType, Sequence[int]]  # where the nodes of each part begin, and the last ones' end
    ranks: Sequence[range]  # that hold each part: one or several, the next part's from the last of these on

    def ranks_of(self, nodes: Iterable[tuple[NodeType, Tensor, Tensor]], sizes: Sequence[int]) -> Tensor:
        """int64 (seeds of a step): the rank of each; rank r gets `sizes[r]` of them.

        `nodes` are, by type, ids and their places in the step. A seed goes to one of the ranks that hold it
        while one of them has room, those of earlier places first; what is left fills the room that is left.
        """
        parts = torch.empty(sum(sizes), dtype=torch.int64)
        for node_type, ids, places in nodes:
            ends = torch.tensor(self.bounds[node_type][1:])
            parts[places] = torch.searchsorted(ends, ids, right=True)
        starts = torch.tensor([of_part.start for of_part in self.ranks])
        groups, group_of_part = torch.unique_consecutive(starts, return_inverse=True)  # their first ranks
        group = group_of_part[parts]
        slots = torch.tensor([0, *sizes]).cumsum(0)  # where the places of each rank begin, rank after rank
        begins = slots[groups]
        room = torch.cat([begins, slots[-1:]]).diff()

        order = group.argsort(stable=True)
        count = torch.bincount(group, minlength=groups.numel())
        in_group = torch.arange(parts.numel()) - (count.cumsum(0) - count)[group[order]]
        has_room = in_group < room[group[order]]
        slot = torch.empty_like(parts)
        slot[order[has_room]] = (begins[group[order]] + in_group)[has_room]
        is_free = torch.ones_like(parts, dtype=torch.bool)
        is_free[slot[order[has_room]]] = False
        slot[order[~has_room].sort().values] = is_free.nonzero().view(-1)
        return torch.searchsorted(slots[1:], slot, right=True)
