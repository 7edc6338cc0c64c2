"""Host memory for a GPU, and the refusal of devices that are none."""

from __future__ import annotations

import ctypes
import mmap
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from khop.kernels.memory import PinningCalls
from khop.loading.device_memory import CudaMemory, PinningRefused, memory_of, own_pages
from khop.loading.device_placement import StorePlace


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("count", [0, 1, 1000, 300_000])
def test_pages_hold_one_tensor_alone(count: int, dtype: torch.dtype) -> None:
    tensors = [own_pages(count, dtype) for _ in range(3)]
    for tensor in tensors:
        assert (tensor.numel(), tensor.dtype, tensor.any().item()) == (count, dtype, False)
        assert tensor.data_ptr() % mmap.PAGESIZE == 0
        tensor.fill_(1)
    assert len({tensor.data_ptr() for tensor in tensors}) == (3 if count else 1)


def test_stores_are_placed_on_a_gpu() -> None:
    with pytest.raises(ValueError, match=r"device 'cpu': stores are placed on a GPU"):
        memory_of("cpu")


class Runtime:
    """The calls of a GPU's runtime. `pin` returns a code; torch's view of pinned memory is the memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, code: int = 0) -> None:
        self.pinned: list[tuple[int, int, int]] = []  # address, bytes, flags
        self.unpinned: list[int] = []
        self.errors_cleared = 0
        self.viewed: list[object] = []  # kept alive as torch's tensors keep them
        self._code = code
        self._functions = (
            ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint)(self._pin),
            ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._unpin),
            ctypes.CFUNCTYPE(ctypes.c_int)(self._last_error),
        )
        pin, unpin, last_error = (ctypes.cast(each, ctypes.c_void_p).value or 0 for each in self._functions)
        calls = PinningCalls(0, pin, unpin, last_error, 0)
        monkeypatch.setattr("khop.loading.device_memory.runtime_calls", lambda index: calls)
        monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
        monkeypatch.setattr(torch, "as_tensor", self._view)

    def _pin(self, address: int, num_bytes: int, flags: int) -> int:
        self.pinned.append((address, num_bytes, flags))
        return self._code

    def _unpin(self, address: int) -> int:
        self.unpinned.append(address)
        return 0

    def _last_error(self) -> int:
        self.errors_cleared += 1
        return self._code

    def _view(self, pinned: object, device: torch.device) -> Tensor:
        self.viewed.append(pinned)
        interface = pinned.__cuda_array_interface__  # type: ignore[attr-defined]
        (count,), (address, _) = interface["shape"], interface["data"]
        return torch.frombuffer((ctypes.c_uint8 * count).from_address(address), dtype=torch.uint8)


CPU = CudaMemory(torch.device("cpu", 0))


def test_a_pinned_copy_is_pinned_once_and_until_its_view_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime(monkeypatch)
    column = torch.arange(3000.0).view(1000, 3)
    found = CPU.stored(column, StorePlace.PINNED)
    assert torch.equal(found, column)
    for_every_device = 1
    assert runtime.pinned == [(found.data_ptr(), 12_000, for_every_device)]
    assert found.data_ptr() != column.data_ptr()
    assert (runtime.unpinned, runtime.errors_cleared) == ([], 0)
    address = found.data_ptr()
    runtime.viewed.clear()
    assert runtime.unpinned == [address]


def test_a_refusal_names_size_code_and_limit_and_clears_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime(monkeypatch, code=2)
    sentence = r"^4\.00 MB of host memory could not be pinned \(error 2\): .* \(`ulimit -l`\) or of the cont"
    with pytest.raises(PinningRefused, match=sentence):
        CPU.stored(torch.zeros(1_000_000), StorePlace.PINNED)
    assert len(runtime.pinned) == 1
    assert runtime.errors_cleared == 1  # torch's next call would report it
    assert runtime.unpinned == runtime.viewed == []


def test_nothing_is_pinned_for_an_empty_store(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime(monkeypatch)
    assert CPU.stored(torch.empty(0, 3), StorePlace.PINNED).shape == (0, 3)
    assert runtime.pinned == []


def test_a_runtime_without_the_calls_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("khop.loading.device_memory.runtime_calls", lambda index: None)
    with pytest.raises(PinningRefused, match="the functions that pin memory are not found"):
        CPU.stored(torch.zeros(3), StorePlace.PINNED)
