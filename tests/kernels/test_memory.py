from pathlib import Path

import pytest
import torch

import khop._core as _core
from khop.kernels.memory import expect_random_access, pooled


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 5), (0, 7), (4, 1, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_is_an_ordinary_contiguous_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = pooled(shape, dtype)
    assert tensor.shape == shape
    assert tensor.dtype == dtype
    assert tensor.is_contiguous()
    assert tensor.fill_(1).sum().real == tensor.numel()


def test_gradients_flow_through_changes_in_place() -> None:
    with torch.no_grad():
        tensor = pooled((3,), torch.float32).fill_(2.0)
    weight = torch.ones(3, requires_grad=True)
    tensor.mul_(weight).sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [2.0, 2.0, 2.0]


def test_a_block_comes_back_when_its_last_tensor_dies() -> None:
    shape = (123, 4567)
    tensor = pooled(shape, torch.float32)
    address, view = tensor.data_ptr(), tensor[1:]
    del tensor
    lent = _core.buffer_pool_usage()[1]
    assert pooled(shape, torch.float32).data_ptr() != address
    del view
    assert _core.buffer_pool_usage()[1] < lent
    assert pooled(shape, torch.float32).data_ptr() == address


@pytest.mark.parametrize("dtype", [torch.int32, torch.bfloat16, torch.bool])
@pytest.mark.parametrize("count", [0, 3, 3_000_000])
def test_advice_leaves_contents_and_addresses_alone(count: int, dtype: torch.dtype) -> None:
    tensor = (torch.arange(count) % 2).to(dtype)
    address, expected = tensor.data_ptr(), tensor.clone()
    expect_random_access(tensor)
    assert tensor.data_ptr() == address
    assert torch.equal(tensor, expected)


def test_a_mapped_file_may_be_advised(tmp_path: Path) -> None:
    path = tmp_path / "ids.bin"
    expected = torch.arange(700_000)
    path.write_bytes(expected.numpy().tobytes())
    mapped = torch.from_file(str(path), shared=False, size=700_000, dtype=torch.int64)
    expect_random_access(mapped)
    assert torch.equal(mapped, expected)
