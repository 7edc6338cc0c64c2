"""Ranks of one machine that are threads of this process."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Barrier

from khop.loading.device.device_memory import MachineRanks


@dataclass
class Threads:
    """Threads of this process in place of the ranks of a machine."""

    count: int
    said: dict[int, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.barrier = Barrier(self.count, timeout=60)

    def exchanged(self, rank: int, value: object) -> list[object]:
        self.said[rank] = value
        self.barrier.wait()
        found = [self.said[number] for number in range(self.count)]
        self.barrier.wait()
        return found

    def run(self, work: Callable[[MachineRanks], object]) -> list[object]:
        with ThreadPoolExecutor(self.count) as pool:
            futures = [pool.submit(work, self.machine(rank)) for rank in range(self.count)]
            return [future.exception() or future.result() for future in futures]

    def machine(self, rank: int) -> MachineRanks:
        return MachineRanks(rank, self.count, lambda text: [str(each) for each in self.exchanged(rank, text)])
