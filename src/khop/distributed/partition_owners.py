"""Which rank holds which parts of a table of rows, and whom a rank asks for one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PartitionOwners:
    """Contiguous parts, shared out in order among ranks: several of a rank's own, or several ranks to a part.

    The same on every rank but for whom `rank` asks: itself for a part that it holds, else one of those that
    hold it, others for other ranks, so that no holder answers all.
    """

    parts: int
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if self.parts < 1 or not 0 <= self.rank < self.world_size:
            raise ValueError(
                f"{self.parts} parts held by rank {self.rank} of {self.world_size}: there has to be a part, "
                "and a rank from 0"
            )

    def parts_of(self, rank: int) -> range:
        """The parts that a rank holds: one at least."""
        if self.world_size >= self.parts:
            part = rank * self.parts // self.world_size
            return range(part, part + 1)
        return range(-(-rank * self.parts // self.world_size), -(-(rank + 1) * self.parts // self.world_size))

    def ranks_of(self, part: int) -> range:
        """The ranks that hold a part: one at least."""
        if self.world_size < self.parts:
            rank = part * self.world_size // self.parts
            return range(rank, rank + 1)
        return range(-(-part * self.world_size // self.parts), -(-(part + 1) * self.world_size // self.parts))

    @property
    def is_first(self) -> bool:
        """Whether this rank is the first of those that hold its parts: it speaks for all of them."""
        return self.ranks_of(self.parts_of(self.rank).start).start == self.rank

    def asked(self, part: int) -> int:
        """The rank that answers this one about a part."""
        ranks = self.ranks_of(part)
        return self.rank if self.rank in ranks else ranks[self.rank % len(ranks)]

    def held(self, offsets: Sequence[int], rank: int) -> tuple[int, int]:
        """The first id that a rank holds, and the one after its last.

        `offsets` are where the ids of each part begin, and the last ones' end.
        """
        parts = self.parts_of(rank)
        return offsets[parts.start], offsets[parts.stop]

    def bounds(self, offsets: Sequence[int]) -> list[int]:
        """(ranks + 1): this rank asks rank q for the ids from the q-th bound up to the next."""
        ends = [0] * self.world_size
        for part in range(self.parts):
            ends[self.asked(part)] = offsets[part + 1]
        for rank in range(1, self.world_size):  # whom this rank does not ask has no ids between its bounds
            ends[rank] = max(ends[rank], ends[rank - 1])
        return [offsets[0], *ends]
