"""Transfer of tensors to a model's device and dtype."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from khop.batch import Change


def mover(model: nn.Module) -> Change:
    """Return a function that moves tensors to the model's device and casts floating-point ones."""
    parameter = next(model.parameters(), torch.empty(0))
    device, dtype = parameter.device, parameter.dtype

    def move(tensor: Tensor) -> Tensor:
        return tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype, non_blocking=True)

    return move
