"""Bringing tensors to where a model computes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from khop.batch import Change


def mover(model: nn.Module) -> Change:
    """Puts a tensor on the model's device, and if it is floating-point, in the dtype of its parameters."""
    parameter = next(model.parameters(), torch.empty(0))
    device, dtype = parameter.device, parameter.dtype

    def move(tensor: Tensor) -> Tensor:
        return tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype, non_blocking=True)

    return move
