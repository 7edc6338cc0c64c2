"""Dropout at a fraction of the cost of drawing a float or a double per value."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from khop.kernels.memory import pooled

_STEPS = 1 << 16  # rates are rounded to this number of steps: 16 random bits per value decide


def dropout(x: Tensor, rate: float) -> Tensor:
    """Set each value to 0 with probability `rate`, and scale the others so that the expectation is unchanged.

    The random bits come from torch's generator: equal seeds drop the same values, with any number of
    threads. On other devices than the CPU this is torch's own dropout.
    """
    if x.device.type != "cpu":
        return F.dropout(x, rate)
    dropped = round(rate * _STEPS)
    if not 0 <= dropped < _STEPS:
        raise ValueError(f"dropout rate {rate}: must be at least 0 and below 1")
    return _apply(x, dropped) if dropped else x


class _Context(FunctionCtx):
    saved_tensors: tuple[Tensor, ...]


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, x: Tensor, dropped: int) -> Tensor:
        count = x.numel()
        bits = pooled((-(-count // 4),), torch.int64).random_(-(1 << 63), None)
        drawn = bits.view(torch.int16)[:count].view(x.shape)
        scale = torch.ge(drawn, dropped - _STEPS // 2, out=pooled(tuple(x.shape), x.dtype))
        scale *= _STEPS / (_STEPS - dropped)
        ctx.save_for_backward(scale)
        return torch.mul(x, scale, out=pooled(tuple(x.shape), x.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, gradient: Tensor) -> tuple[Tensor, None]:
        (scale,) = ctx.saved_tensors
        return torch.mul(gradient, scale, out=pooled(tuple(scale.shape), scale.dtype)), None


_apply: Callable[[Tensor, int], Tensor] = _Dropout.apply
