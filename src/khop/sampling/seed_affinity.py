"""Assignment of seeds to the ranks that hold them, as far as shares stay equal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from khop.schema import NodeType


@dataclass(frozen=True, eq=False)
class SeedAffinity:
    """The ranks that hold each node: contiguous ranges of ids, each held by contiguous ranks."""

    bounds: Mapping[NodeType, Sequence[int]]  # the first node of each part, and the end of the last part
    ranks: Sequence[range]  # one or several per part; the next part starts at the last of these or later

    def ranks_of(self, nodes: Iterable[tuple[NodeType, Tensor, Tensor]], sizes: Sequence[int]) -> Tensor:
        """Return int64 (seeds of a step): the rank of each seed. Rank r gets `sizes[r]` seeds.

        `nodes` are, by type, ids and their positions in the step. A seed goes to one of the ranks that hold
        it while one of them has room; earlier positions go first. The remaining seeds fill the remaining
        room.
        """
        parts = torch.empty(sum(sizes), dtype=torch.int64)
        for node_type, ids, places in nodes:
            ends = torch.tensor(self.bounds[node_type][1:])
            parts[places] = torch.searchsorted(ends, ids, right=True)
        starts = torch.tensor([of_part.start for of_part in self.ranks])
        groups, group_of_part = torch.unique_consecutive(starts, return_inverse=True)  # by first rank
        group = group_of_part[parts]
        slots = torch.tensor([0, *sizes]).cumsum(0)  # the first slot of each rank, rank after rank
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
