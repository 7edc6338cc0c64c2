"""The ranks of one machine, for memory that they share."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from khop.runtime.group import Group


@dataclass(frozen=True)
class MachineRanks:
    """The ranks of this rank's machine; see `khop.loading.machine_segment.Machine`.

    Ranks of a machine have consecutive numbers. Calls are collective over the ranks of all machines.
    """

    group: Group

    @property
    def is_first(self) -> bool:
        """True on one rank of the machine."""
        return self.group.local_rank == 0

    def first_says(self, text: str) -> str:
        """Return the text of the machine's first rank."""
        with self.group.exchanging("sharing pinned memory"):
            return self.group.gather_bytes(text.encode())[self._first].decode()

    def all_say(self, value: int) -> bool:
        """Return True if every rank of the machine has this value."""
        with self.group.exchanging("sharing pinned memory"):
            values = self.group.gather(torch.tensor([value])).flatten()
        return bool((values[self._first : self._first + self.group.local_world_size] == value).all())

    @property
    def _first(self) -> int:
        return self.group.rank - self.group.local_rank
