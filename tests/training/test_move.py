"""Tensors go where the model is."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from khop.training.move import mover


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_floats_take_the_dtype_of_the_parameters_and_other_columns_stay(dtype: torch.dtype) -> None:
    move = mover(nn.Linear(2, 2).to(dtype))
    assert move(torch.ones(3, dtype=torch.float16)).dtype == dtype
    assert move(torch.ones(3, dtype=torch.uint8)).dtype == torch.uint8
    assert move(torch.ones(3, dtype=torch.int64)).dtype == torch.int64


def test_tensors_go_to_the_device_of_the_parameters() -> None:
    move = mover(nn.Linear(2, 2, device="meta"))
    assert move(torch.ones(3, dtype=torch.int64)).device.type == "meta"


def test_a_model_without_parameters_computes_in_float32_on_the_cpu() -> None:
    moved = mover(nn.Identity())(torch.ones(3, dtype=torch.float64))
    assert (moved.dtype, moved.device.type) == (torch.float32, "cpu")
