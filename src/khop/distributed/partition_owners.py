"""Assignment of partitions to ranks, and the rank that answers requests for each partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PartitionOwners:
    """Contiguous partitions assigned to ranks in order: several per rank, or several ranks per partition.

    The assignment is the same on every rank. Only the choice of the rank to ask depends on `rank`: itself for
    a partition that it stores, otherwise one of the ranks that store it. Different ranks ask different
    owners, so no owner answers all requests.
    """

    parts: int
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if self.parts < 1 or not 0 <= self.rank < self.world_size:
            raise ValueError(
                f"{self.parts} parts held by rank {self.rank} of {self.world_size}: there must be at least "
                "one part, and ranks count from 0"
            )

    def parts_of(self, rank: int) -> range:
        """Return the partitions that a rank stores: at least one."""
        if self.world_size >= self.parts:
            part = rank * self.parts // self.world_size
            return range(part, part + 1)
        return range(-(-rank * self.parts // self.world_size), -(-(rank + 1) * self.parts // self.world_size))

    def ranks_of(self, part: int) -> range:
        """Return the ranks that store a partition: at least one."""
        if self.world_size < self.parts:
            rank = part * self.world_size // self.parts
            return range(rank, rank + 1)
        return range(-(-part * self.world_size // self.parts), -(-(part + 1) * self.world_size // self.parts))

    @property
    def is_first(self) -> bool:
        """True if this rank is the first of the ranks with its partitions, and so sends for all of them."""
        return self.ranks_of(self.parts_of(self.rank).start).start == self.rank

    def asked(self, part: int) -> int:
        """Return the rank that answers this rank's requests for a partition."""
        ranks = self.ranks_of(part)
        return self.rank if self.rank in ranks else ranks[self.rank % len(ranks)]

    def held(self, offsets: Sequence[int], rank: int) -> tuple[int, int]:
        """Return the first id that a rank stores, and the id after its last.

        `offsets` hold the first id of each partition, and the end of the last.
        """
        parts = self.parts_of(rank)
        return offsets[parts.start], offsets[parts.stop]

    def bounds(self, offsets: Sequence[int]) -> list[int]:
        """Return (ranks + 1) ids: this rank asks rank q for the ids from bound q up to bound q + 1."""
        ends = [0] * self.world_size
        for part in range(self.parts):
            ends[self.asked(part)] = offsets[part + 1]
        for rank in range(1, self.world_size):  # an empty range for each rank that this one does not ask
            ends[rank] = max(ends[rank], ends[rank - 1])
        return [offsets[0], *ends]
