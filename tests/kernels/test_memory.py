import pytest
import torch

import khop._core as _core
from khop.kernels.memory import pooled


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
