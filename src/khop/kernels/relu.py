"""relu in place, whose gradient is written into memory that was used before."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from khop.kernels.memory import pooled


def relu_(x: Tensor) -> Tensor:
    """The same tensor, with 0 in place of what is negative; the bits are those of `x.relu_()`.

    Differentiable once. Off the CPU this is torch's own.
    """
    return _apply(x) if x.device.type == "cpu" else x.relu_()


class _Context(FunctionCtx):
    saved_tensors: tuple[Tensor, ...]

    def mark_dirty(self, *tensors: Tensor) -> None: ...


class _Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, x: Tensor) -> Tensor:
        out = x.relu_()
        ctx.mark_dirty(x)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, gradient: Tensor) -> Tensor:
        (out,) = ctx.saved_tensors
        into = pooled(tuple(out.shape), out.dtype)
        torch.ops.aten.threshold_backward.grad_input(gradient, out, 0, grad_input=into)
        return into


# What torch leaves without types.
_apply: Callable[[Tensor], Tensor] = _Relu.apply
