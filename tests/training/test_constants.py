"""Numbers of a task are copied to a device once."""

from __future__ import annotations

import torch

from khop.training.tasks import constant


def test_equal_numbers_are_one_tensor_per_dtype() -> None:
    cpu = torch.device("cpu")
    made = constant((1.0, 2.5), torch.float32, cpu)
    assert made.tolist() == [1.0, 2.5]
    assert constant((1.0, 2.5), torch.float32, cpu) is made
    assert constant((1.0, 2.5), torch.float64, cpu).dtype == torch.float64
