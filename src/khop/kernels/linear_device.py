"""A layer's matrix products, bias and relu on a GPU: products add to one result, gradients in one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from khop.kernels.linear_blocks import Activation
from khop.kernels.pitch import LOAD_BYTES


def linear_sum_device(
    inputs: Sequence[Tensor], weights: Sequence[Tensor], bias: Tensor, activation: Activation
) -> Tensor:
    """activation(sum of `x @ weight.T` + bias), differentiable once; one input at least.

    The products are of the dtype of autocast if it is on, else of the first input's dtype.
    """
    kind = bias.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else inputs[0].dtype
    return _apply(activation, dtype, bias, *inputs, *weights)


class _Context(FunctionCtx):
    needs_input_grad: tuple[bool, ...]
    saved_tensors: tuple[Tensor, ...]
    activation: Activation
    dtypes: tuple[torch.dtype, ...]
    widths: tuple[int, ...]  # of the inputs, and so of their weights


class _LinearSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _Context, activation: Activation, dtype: torch.dtype, bias: Tensor, *both: Tensor
    ) -> Tensor:
        count = len(both) // 2
        operands = [_aligned(tensor.to(dtype)) for tensor in both]
        with torch.autocast(bias.device.type, enabled=False):
            out = torch.addmm(bias.to(dtype), operands[0], operands[count].t())
            for x, weight in zip(operands[1:count], operands[count + 1 :], strict=True):
                out.addmm_(x, weight.t())
            if activation == "relu":
                out.relu_()
        ctx.activation, ctx.dtypes = activation, (bias.dtype, *(tensor.dtype for tensor in both))
        ctx.widths = tuple(x.shape[1] for x in both[:count])
        ctx.save_for_backward(out, *operands)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from khop.kernels.triton.relu_gradient import relu_and_bias_gradient

        result, *operands = ctx.saved_tensors
        inputs, weights = operands[: len(operands) // 2], operands[len(operands) // 2 :]
        of_relu = result if ctx.activation == "relu" else None
        gradient, of_bias = relu_and_bias_gradient(gradient.contiguous(), of_relu)
        needs = ctx.needs_input_grad[3:]
        products = [
            *((gradient, weight) for weight in weights),
            *((gradient.t(), x) for x in inputs),
        ]
        found = [
            (a @ b)[:, :width] if wanted else None
            for (a, b), width, wanted in zip(products, ctx.widths * 2, needs, strict=True)
        ]
        gradients = [of_bias, *found]
        return (
            None,
            None,
            *(None if g is None else g.to(dtype) for g, dtype in zip(gradients, ctx.dtypes, strict=True)),
        )


def _aligned(rows: Tensor) -> Tensor:
    """Return rows with zeros behind them up to a multiple of 16 bytes, as the fast products need."""
    over = rows.shape[1] * rows.element_size() % LOAD_BYTES
    return F.pad(rows, (0, (LOAD_BYTES - over) // rows.element_size())) if over else rows


# torch has no types for this.
_apply: Callable[..., Tensor] = _LinearSum.apply
