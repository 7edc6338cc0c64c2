"""Memory for placed stores: GPU memory, and pinned host memory that the ranks of a machine share."""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol
from weakref import finalize

import torch
from torch import Tensor
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor

from khop.kernels.memory import PinningCalls, empty_rows, free_memory_bytes, memory_limit_bytes, padded_pitch
from khop.loading.device.device_placement import StorePlace
from khop.loading.device.memory_plan import FreeMemory, gigabytes
from khop.loading.device.streams import runtime_calls
from khop.loading.device.transfer import device_of
from khop.process_tuning import bound_to, interleave

OUT_OF_MEMORY = torch.OutOfMemoryError


class PinningRefused(RuntimeError):
    """Raised if the system or the GPU's runtime cannot pin more memory."""


class DeviceMemory(Protocol):
    """Memory of one device. tests/support/host_as_device.py implements it without a GPU."""

    @property
    def device(self) -> torch.device:
        """The device."""
        ...

    def free(self) -> FreeMemory:
        """Return the free memory of device and host."""
        ...

    def stored(self, tensor: Tensor, place: StorePlace) -> Tensor:
        """Return a copy that kernels of the device read, in its memory or in pinned host memory.

        Raises OUT_OF_MEMORY or PinningRefused.
        """
        ...

    def stored_rows(self, column: Tensor, place: StorePlace) -> Tensor:
        """Return a copy as `stored` does, with rows at a distance of a multiple of 16 bytes."""
        ...

    def pinned(self, host: Tensor) -> Tensor:
        """Pin a tensor's storage, which shares no page with others, and return the tensor for the device.

        Raises PinningRefused.
        """
        ...

    def reaches(self, others: MachineRanks) -> bool:
        """Return True if kernels read the memory of the devices of all ranks of the machine. Collective."""
        ...

    def exported(self, rows: Tensor) -> str:
        """Return a text by which other processes of the machine open the rows, which are on the device."""
        ...

    def opened(self, text: str, like: Tensor) -> Tensor:
        """Return the exported rows of another rank, with dtype and shape of `like` (rows, ...).

        The memory lives as long as the process that it belongs to. Raises RuntimeError.
        """
        ...


@dataclass(frozen=True)
class CudaMemory:
    """Memory of a GPU of CUDA or ROCm. A pinned copy is a tensor of the GPU over host memory."""

    device: torch.device  # with its index

    def free(self) -> FreeMemory:
        """Return the free memory of card (or MIG instance) and host (or control group)."""
        free, total = torch.cuda.mem_get_info(self.device)
        unused = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return FreeMemory(free + unused, free_memory_bytes(), total, memory_limit_bytes())

    def stored(self, tensor: Tensor, place: StorePlace) -> Tensor:
        """Return a copy on the GPU, or a pinned copy; see DeviceMemory."""
        if place is StorePlace.DEVICE:
            return tensor.to(self.device, copy=True)
        return self.pinned(own_pages(tensor.numel(), tensor.dtype).view(tensor.shape).copy_(tensor))

    def stored_rows(self, column: Tensor, place: StorePlace) -> Tensor:
        """Return a copy of a column with padded rows; see DeviceMemory."""
        shape = tuple(column.shape[1:])
        if place is StorePlace.DEVICE:
            return empty_rows(column.shape[0], shape, column.dtype, self.device).copy_(column)
        pitch = padded_pitch(math.prod(shape), column.dtype)
        memory = own_pages(column.shape[0] * pitch, column.dtype).untyped_storage()
        rows = torch.empty(0, dtype=column.dtype).set_(memory, 0, column.shape, _row_strides(shape, pitch))
        return self.pinned(rows.copy_(column))

    def pinned(self, host: Tensor) -> Tensor:
        """Pin a tensor's storage; return a tensor of the GPU with the same memory; see DeviceMemory."""
        storage = host.untyped_storage()
        if storage.nbytes() == 0:
            return host.to(self.device)
        calls = runtime_calls(self.device.index)
        if calls is None:
            raise PinningRefused("the functions that pin memory are not found in torch's libraries")
        pinned = _Pinned(storage.data_ptr(), storage.nbytes())
        with torch.cuda.device(self.device):
            _register(calls, pinned)
            finalize(pinned, _unregister, calls, host)  # on any thread
            whole = torch.as_tensor(pinned, device=self.device)
        offset, shape, strides = host.storage_offset(), host.shape, host.stride()
        return torch.empty(0, dtype=host.dtype, device=self.device).set_(
            whole.untyped_storage(), offset, shape, strides
        )

    def reaches(self, others: MachineRanks) -> bool:
        """Return True if all ranks see the same GPUs, which read each other's memory; see DeviceMemory."""
        seen = others.texts(f"{self.device.index} of {torch.cuda.device_count()}")
        cards = [int(text.partition(" ")[0]) for text in seen]
        is_own = len(set(cards)) == len(seen) and len({text.partition(" of ")[2] for text in seen}) == 1
        other = [card for card in cards if card != self.device.index]
        can = is_own and all(torch.cuda.can_device_access_peer(self.device.index, card) for card in other)
        return others.all_say(int(can)) and can

    def exported(self, rows: Tensor) -> str:
        """Return the handle of CUDA's inter-process communication as text; see DeviceMemory."""
        _, arguments = reduce_tensor(rows)
        facts = [arguments[3], *arguments[6:10], *arguments[11:]]  # offset, allocation, counter, event
        return json.dumps([each.hex() if isinstance(each, bytes) else each for each in facts])

    def opened(self, text: str, like: Tensor) -> Tensor:
        """Return the rows of another GPU, whose memory this one may access from now on; see DeviceMemory."""
        facts = [bytes.fromhex(each) if isinstance(each, str) else each for each in json.loads(text)]
        view = (tuple(like.shape), like.stride(), facts[0], torch.storage.TypedStorage, like.dtype)
        rows: Tensor = rebuild_cuda_tensor(*(Tensor, *view, *facts[1:5], False, *facts[5:]))
        torch.empty_like(like[:1], device=self.device).copy_(rows[:1])  # from now on kernels may read it
        return rows


def memory_of(given: str) -> DeviceMemory:
    """Return the memory of a GPU; "cuda" is this rank's. ValueError if there is none."""
    device = device_of(given)
    if device.type != "cuda":
        raise ValueError(f'device {given!r}: stores are placed on a GPU, as "cuda" or "cuda:1"; leave it out')
    index = torch.cuda.current_device() if device.index is None else device.index
    return CudaMemory(torch.device(device.type, index))


def own_pages(count: int, dtype: torch.dtype) -> Tensor:
    """Return `count` zeros in separate pages, because a page is pinned as a whole, and only once.

    Huge pages are used if the system supports them. Several memory nodes each get a part of the pages, unless
    this process is bound to cores: then its memory is allocated near them.
    """
    if count == 0:
        return torch.empty(0, dtype=dtype)
    pages = mmap.mmap(-1, count * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):
        pages.madvise(mmap.MADV_HUGEPAGE)
    found = torch.frombuffer(pages, dtype=dtype, count=count)
    if not bound_to():
        interleave(found.data_ptr(), found.nbytes)
    return found


class _Pinned:
    """Pinned host memory, in the form that torch takes as memory of the GPU."""

    def __init__(self, address: int, num_bytes: int) -> None:
        self.address, self.num_bytes = address, num_bytes

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        return {"shape": (self.num_bytes,), "typestr": "|u1", "data": (self.address, False), "version": 3}


PIECE_BYTES = 1 << 30  # pinned by one call: other calls of the process wait for it


def _register(calls: PinningCalls, pinned: _Pinned) -> None:
    """Pin memory piece by piece; if one is refused, unpin those before it and raise PinningRefused."""
    pin = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint)(calls.pin)
    for_every_device = 1
    for offset in range(0, pinned.num_bytes, PIECE_BYTES):
        size = min(PIECE_BYTES, pinned.num_bytes - offset)
        code = pin(pinned.address + offset, size, for_every_device)
        if code != 0:
            ctypes.CFUNCTYPE(ctypes.c_int)(calls.last_error)()  # clears it, or torch's next call reports it
            _unpin(calls, pinned.address, offset)
            raise PinningRefused(
                f"{gigabytes(pinned.num_bytes)} of host memory could not be pinned (error {code}): the "
                "limit of locked memory (`ulimit -l`) or of the container is too low"
            )


def _unregister(calls: PinningCalls, host: Tensor) -> None:
    with torch.cuda.device(calls.device):
        _unpin(calls, host.untyped_storage().data_ptr(), host.untyped_storage().nbytes())


def _unpin(calls: PinningCalls, address: int, num_bytes: int) -> None:
    """Unpin the first bytes of pinned memory, piece by piece."""
    unpin = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(calls.unpin)
    for offset in range(0, num_bytes, PIECE_BYTES):
        unpin(address + offset)


_ALIGNED = 64  # bytes: parts of the block begin at multiples of it
_REFUSED = "!"


@dataclass(frozen=True)
class MachineRanks:
    """The ranks of one machine, which all make the same calls."""

    rank: int  # on the machine
    count: int
    texts: Callable[[str], Sequence[str]]  # returns the text of every rank, in their order; collective

    @property
    def is_first(self) -> bool:
        """True on one rank of the machine."""
        return self.rank == 0

    def first_says(self, text: str) -> str:
        """Return the text of the first rank. Collective."""
        return self.texts(text)[0]

    def all_say(self, value: int) -> bool:
        """Return True if every rank of the machine has this value. Collective."""
        return set(self.texts(str(value))) == {str(value)}


class SharedPins:
    """Memory of a device with pinned copies in a block of all ranks of the machine; see DeviceMemory.

    The first rank fills the block, and every rank pins its mapping of it. All ranks must store the same
    tensors in the same order. Copies after `close` are private to each rank.
    """

    def __init__(self, inner: DeviceMemory, block: Tensor, machine: MachineRanks) -> None:
        self._inner, self._block, self._machine = inner, block, machine
        self._on_device: Tensor | None = None
        self._used, self._is_open = 0, True

    @property
    def device(self) -> torch.device:
        """The device."""
        return self._inner.device

    def free(self) -> FreeMemory:
        """Return the free memory of device and host."""
        return self._inner.free()

    def stored(self, tensor: Tensor, place: StorePlace) -> Tensor:
        """Return a copy in device memory or in the block; see DeviceMemory."""
        if place is not StorePlace.PINNED or not self._is_open:
            return self._inner.stored(tensor, place)
        strides = [math.prod(tensor.shape[axis + 1 :]) for axis in range(tensor.dim())]
        return self._kept(tensor, strides, tensor.numel())

    def stored_rows(self, column: Tensor, place: StorePlace) -> Tensor:
        """Return a copy of a column with padded rows; see DeviceMemory."""
        if place is not StorePlace.PINNED or not self._is_open:
            return self._inner.stored_rows(column, place)
        shape = column.shape[1:]
        pitch = padded_pitch(math.prod(shape), column.dtype)
        return self._kept(column, _row_strides(shape, pitch), column.shape[0] * pitch)

    def pinned(self, host: Tensor) -> Tensor:
        """Pin a tensor where it is; see DeviceMemory."""
        return self._inner.pinned(host)

    def reaches(self, others: MachineRanks) -> bool:
        """Return True if kernels read the memory of the devices of all ranks; see DeviceMemory."""
        return self._inner.reaches(others)

    def exported(self, rows: Tensor) -> str:
        """Return a text by which other processes open the rows; see DeviceMemory."""
        return self._inner.exported(rows)

    def opened(self, text: str, like: Tensor) -> Tensor:
        """Return the exported rows of another rank; see DeviceMemory."""
        return self._inner.opened(text, like)

    def close(self) -> None:
        """Store nothing more in the block."""
        self._is_open = False

    def _kept(self, tensor: Tensor, strides: list[int], numbers: int) -> Tensor:
        """Return the next part of the block as the device reads it; the first rank copies the tensor."""
        if self._on_device is None:
            self._on_device = self._inner.pinned(self._block)
        start, end = self._used, self._used + numbers * tensor.element_size()
        assert end <= self._block.numel(), "the block has the planned size"
        self._used = -(-end // _ALIGNED) * _ALIGNED
        if self._machine.is_first and numbers:
            _view(self._block, start, tensor, strides).copy_(tensor)
        return _view(self._on_device, start, tensor, strides)


def shared_pins(
    inner: DeviceMemory, num_bytes: int, num_stores: int, machine: MachineRanks
) -> SharedPins | None:
    """Return memory with room for `num_stores` pinned copies of `num_bytes` together. Collective.

    None if the ranks want different sizes, or cannot share memory (different containers). PinningRefused, on
    all ranks, if the machine or its control group has too little memory.
    """
    if not machine.all_say(num_bytes) or num_bytes == 0:
        return None
    size = num_bytes + num_stores * _ALIGNED
    descriptor = -1
    said = ""
    if machine.is_first:
        said, descriptor = _created(size)
    said = machine.first_says(said)
    if said.startswith(_REFUSED):
        raise PinningRefused(said.removeprefix(_REFUSED))
    if not machine.is_first:
        try:
            descriptor = os.open(said, os.O_RDWR | os.O_CLOEXEC)
        except OSError:  # the other ranks see this below, and share nothing either
            descriptor = -1
    has_all = machine.all_say(int(descriptor >= 0))
    if descriptor < 0:
        return None
    try:
        if not has_all:
            return None
        block = torch.frombuffer(mmap.mmap(descriptor, size), dtype=torch.uint8)
    finally:
        os.close(descriptor)  # the mappings keep the memory: it has no name, and ends with them
    return SharedPins(inner, block, machine)


def _created(size: int) -> tuple[str, int]:
    """Create the block; return its path for other processes and its descriptor, or the reason and -1."""
    free = free_memory_bytes()
    if size > free:
        return (
            f"{_REFUSED}{gigabytes(size)} of shared memory for the pinned stores of this machine: "
            f"{gigabytes(free)} are free in it or in the control group of its container",
            -1,
        )
    descriptor = os.memfd_create("khop-stores")
    try:
        os.ftruncate(descriptor, size)
        mapped = torch.frombuffer(mmap.mmap(descriptor, size), dtype=torch.uint8)
        interleave(mapped.data_ptr(), size)  # the memory keeps it after this mapping
        del mapped
        os.posix_fallocate(
            descriptor, 0, size
        )  # else a missing page would end the process when it is written
    except OSError as error:
        os.close(descriptor)
        return (
            f"{_REFUSED}{gigabytes(size)} of shared memory for the pinned stores of this machine: "
            f"{error.strerror}",
            -1,
        )
    return f"/proc/{os.getpid()}/fd/{descriptor}", descriptor


def _row_strides(shape: Sequence[int], pitch: int) -> list[int]:
    return [pitch, *(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))]


def _view(block: Tensor, start: int, like: Tensor, strides: list[int]) -> Tensor:
    """Return the numbers from byte `start` of a block on, in dtype and shape of a tensor."""
    first = block.storage_offset() + start
    out = torch.empty(0, dtype=like.dtype, device=block.device)
    return out.set_(block.untyped_storage(), first // like.element_size(), tuple(like.shape), strides)
