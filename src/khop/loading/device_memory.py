"""Memory of a GPU, and host memory that it reads: where placed stores are kept."""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import dataclass
from typing import Protocol
from weakref import finalize

import torch
from torch import Tensor

from khop.kernels.memory import PinningCalls, free_memory_bytes, memory_limit_bytes
from khop.kernels.pitch import empty_rows
from khop.loading.device_placement import StorePlace
from khop.loading.memory_plan import FreeMemory, gigabytes
from khop.loading.streams import runtime_calls
from khop.loading.transfer import device_of

OUT_OF_MEMORY = torch.OutOfMemoryError


class PinningRefused(RuntimeError):
    """The system or the GPU's runtime pins no more memory."""


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
        """Pin a tensor's storage, which has pages of its own; return the tensor as the device reads it.

        Raises PinningRefused.
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
        return self.pinned(
            empty_rows(column.shape[0], shape, column.dtype, torch.device("cpu")).copy_(column)
        )

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
            finalize(pinned, _unregister, calls, host)
            whole = torch.as_tensor(pinned, device=self.device)
        offset, shape, strides = host.storage_offset(), host.shape, host.stride()
        return torch.empty(0, dtype=host.dtype, device=self.device).set_(
            whole.untyped_storage(), offset, shape, strides
        )


def memory_of(given: str) -> DeviceMemory:
    """Return the memory of a GPU; "cuda" is this rank's. ValueError if there is none."""
    device = device_of(given)
    if device.type != "cuda":
        raise ValueError(f'device {given!r}: stores are placed on a GPU, as "cuda" or "cuda:1"; leave it out')
    index = torch.cuda.current_device() if device.index is None else device.index
    return CudaMemory(torch.device(device.type, index))


def own_pages(count: int, dtype: torch.dtype) -> Tensor:
    """Return `count` zeros in pages that hold nothing else: a page is pinned as a whole, and once."""
    pages = mmap.mmap(-1, max(1, count * dtype.itemsize), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=dtype, count=count) if count else torch.empty(0, dtype=dtype)


class _Pinned:
    """Pinned host memory, in the form that torch takes as memory of the GPU."""

    def __init__(self, address: int, num_bytes: int) -> None:
        self.address, self.num_bytes = address, num_bytes

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        return {"shape": (self.num_bytes,), "typestr": "|u1", "data": (self.address, False), "version": 3}


def _register(calls: PinningCalls, pinned: _Pinned) -> None:
    pin = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint)(calls.pin)
    for_every_device = 1
    code = pin(pinned.address, pinned.num_bytes, for_every_device)
    if code != 0:
        ctypes.CFUNCTYPE(ctypes.c_int)(calls.last_error)()  # clears it, or torch's next call would report it
        raise PinningRefused(
            f"{gigabytes(pinned.num_bytes)} of host memory could not be pinned (error {code}): the "
            "limit of locked memory (`ulimit -l`) or of the container is too low"
        )


def _unregister(calls: PinningCalls, host: Tensor) -> None:
    ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(calls.unpin)(host.untyped_storage().data_ptr())
