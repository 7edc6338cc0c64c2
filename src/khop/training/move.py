"""Transfer of tensors to a model's device, and conversion to its dtype."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from khop.batch import Batch, Change


def mover(model: nn.Module) -> Change:
    """Return a function that moves tensors to the model's device and casts floating-point ones."""
    parameter = next(model.parameters(), torch.empty(0))
    device, dtype = parameter.device, parameter.dtype

    def move(tensor: Tensor) -> Tensor:
        return tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype, non_blocking=True)

    return move


def in_dtype_of(model: nn.Module, batch: Batch) -> Batch:
    """Return a batch on the model's device with its floating-point columns in the model's dtype.

    If they have it already, `batch` itself is returned.
    """
    dtype = next(model.parameters(), torch.empty(0)).dtype

    def cast(tensor: Tensor) -> Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    edges = [a.columns for block in batch.blocks for a in block.adjacencies.values()]
    of_types = (*batch.columns.values(), *batch.seed_columns.values(), *edges)
    columns = [column for of_type in of_types for column in of_type.values()]
    fits = all(column.dtype == dtype for column in columns if column.is_floating_point())
    return batch if fits else batch.map(cast)
