"""Host memory for a GPU, and the refusal of devices that are none."""

from __future__ import annotations

import mmap

import pytest
import torch

from khop.loading.device_memory import memory_of, own_pages


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
