"""Memory of a device that is the host's: what is stored there is a copy at another address."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from weakref import finalize

import torch
from torch import Tensor

from khop.kernels.memory import empty_rows
from khop.loading.device.device_memory import OUT_OF_MEMORY, MachineRanks, PinningRefused
from khop.loading.device.device_placement import StorePlace
from khop.loading.device.memory_plan import FreeMemory


@dataclass
class HostAsDevice:
    """A device with room for `most` bytes in each memory, however much it says is free."""

    most: dict[StorePlace, int] = field(default_factory=dict)
    said: FreeMemory = FreeMemory(1 << 40, 1 << 40)  # noqa: RUF009
    device: torch.device = torch.device("cpu")  # noqa: RUF009
    taken: Counter[StorePlace] = field(default_factory=Counter)
    registered: list[int] = field(default_factory=list)  # bytes of tensors that were pinned in place
    is_reached: bool = True  # by the kernels of other devices
    kept: list[int] = field(default_factory=list)  # descriptors of exported rows

    def free(self) -> FreeMemory:
        return self.said

    def stored(self, tensor: Tensor, place: StorePlace) -> Tensor:
        self._check(tensor.nbytes, place)
        return self._counted(tensor.clone(), place)

    def stored_rows(self, column: Tensor, place: StorePlace) -> Tensor:
        rows = empty_rows(column.shape[0], tuple(column.shape[1:]), column.dtype, self.device)
        self._check(rows.untyped_storage().nbytes(), place)
        return self._counted(rows, place).copy_(column)

    def pinned(self, host: Tensor) -> Tensor:
        self._check(host.nbytes, StorePlace.PINNED)
        self.registered.append(host.nbytes)
        return host

    def reaches(self, others: MachineRanks) -> bool:
        return others.all_say(int(self.is_reached)) and self.is_reached

    def exported(self, rows: Tensor) -> str:
        """A path of memory with the rows at their pitch."""
        flat = rows.as_strided((rows.shape[0] * rows.stride(0),), (1,))
        self.kept.append(os.memfd_create("rows"))
        os.write(self.kept[-1], flat.view(torch.uint8).numpy().tobytes())
        finalize(self, os.close, self.kept[-1])
        return f"/proc/{os.getpid()}/fd/{self.kept[-1]}"

    def opened(self, text: str, like: Tensor) -> Tensor:
        rows = torch.from_file(text, shared=True, size=Path(text).stat().st_size, dtype=torch.uint8)
        return torch.empty(0, dtype=like.dtype).set_(rows.untyped_storage(), 0, like.shape, like.stride())

    def _check(self, size: int, place: StorePlace) -> None:
        if self.taken[place] + size > self.most.get(place, 1 << 40):
            if place is StorePlace.DEVICE:
                raise OUT_OF_MEMORY(f"out of memory: {size} bytes\nof the allocator's advice")
            raise PinningRefused(f"{size} bytes could not be pinned")

    def _counted(self, tensor: Tensor, place: StorePlace) -> Tensor:
        storage = tensor.untyped_storage()
        self.taken.update({place: storage.nbytes()})
        finalize(storage, self.taken.subtract, {place: storage.nbytes()})
        return tensor
