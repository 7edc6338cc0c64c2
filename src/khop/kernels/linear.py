"""Matrix products for the rows of a layer: in blocks if this is faster on the processor, else by torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from khop.kernels.choice import Engine, engine
from khop.kernels.linear_blocks import Activation, Blocks, linear_sum_blocks
from khop.kernels.linear_choice import CHOICES, FEW_ROWS
from khop.kernels.linear_device import linear_sum_device
from khop.kernels.relu import relu_
from khop.kernels.sparse_column import SparseRows


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias`, as torch.nn.functional.linear: x (rows, in), weight (out, in), bias (out).

    Differentiable once if it is computed in blocks. The library and the block size come from a short
    measurement, made once per machine: see `khop.kernels.linear_choice`.
    """
    if isinstance(x, SparseRows):
        return x.product(weight, bias)
    return linear_sum([x], [weight], bias)


def linear_sum(
    inputs: Sequence[Tensor],
    weights: Sequence[Tensor],
    bias: Tensor | None = None,
    addend: Tensor | None = None,
    activation: Activation = "none",
) -> Tensor:
    """activation(sum of `linear(x, weight)` over the inputs + bias + addend), addend (rows, out).

    At least one input or an addend.
    """
    dtype = _block_dtype([*inputs, *weights], addend)
    blocks = None if dtype is None else _blocks(dtype, weights)
    if bias is not None and addend is None and inputs and engine(bias.device) is Engine.TRITON:
        return linear_sum_device(inputs, weights, bias, activation)
    if dtype is None or blocks is None:
        return _by_torch(inputs, weights, bias, addend, activation)
    return linear_sum_blocks(blocks, dtype, inputs, weights, bias, addend, activation)


def _by_torch(
    inputs: Sequence[Tensor],
    weights: Sequence[Tensor],
    bias: Tensor | None,
    addend: Tensor | None,
    activation: Activation,
) -> Tensor:
    # In place, because new memory costs more than the sum.
    if inputs:
        out = F.linear(inputs[0], weights[0], bias)
        for x, weight in zip(inputs[1:], weights[1:], strict=True):
            if engine(x.device) is Engine.NATIVE:
                out += F.linear(x, weight)
            else:  # added by the product itself; the dtype is that of out, which autocast may have chosen
                out.addmm_(x.to(out.dtype), weight.t().to(out.dtype))
        if addend is not None:
            out += addend
    else:
        assert addend is not None
        out = addend.clone() if bias is None else addend + bias
    return relu_(out) if activation == "relu" else out


def _block_dtype(operands: Sequence[Tensor], addend: Tensor | None) -> torch.dtype | None:
    """Return the dtype of the result if blocks can compute it, else None: torch computes it."""
    tensors = operands if addend is None else [*operands, addend]
    if not operands or operands[0].shape[0] < FEW_ROWS:
        return None
    if not all(engine(tensor.device) is Engine.NATIVE and tensor.dim() == 2 for tensor in tensors):
        return None
    dtypes = {tensor.dtype for tensor in tensors}
    if torch.is_autocast_enabled("cpu"):
        lowered = dtypes <= {torch.float32, torch.bfloat16}
        return torch.bfloat16 if lowered and torch.get_autocast_dtype("cpu") == torch.bfloat16 else None
    return dtypes.pop() if len(dtypes) == 1 else None


def _blocks(dtype: torch.dtype, weights: Sequence[Tensor]) -> Blocks | None:
    """Return the choice for a layer of this size. Inference uses the choice measured in training."""
    width = max(weights[0].shape[0], sum(weight.shape[1] for weight in weights))
    return CHOICES.blocks(dtype, width, may_measure=torch.is_grad_enabled())
