"""relu in place, with its gradient in reused memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from khop.kernels.choice import Engine, engine
from khop.kernels.memory import pooled


def relu_(x: Tensor) -> Tensor:
    """Replace negative values by 0 in place and return the tensor; the bits equal `x.relu_()`.

    Differentiable once. On other devices than the CPU this is torch's own relu.
    """
    return _apply(x) if engine(x.device) is Engine.NATIVE else x.relu_()


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


# torch has no types for these.
_apply: Callable[[Tensor], Tensor] = _Relu.apply
