"""Activations of a layer: keyed dropout, and in-place ReLU whose backward pass reuses memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from khop.kernels.choice import Engine, engine
from khop.kernels.memory import pooled
from khop.kernels.philox import WORD, philox_reference

_STEPS = 1 << 16  # rates are rounded to this number of steps: 16 random bits per value decide
_PER_BLOCK = 8  # values of a counter block


@dataclass
class _Keyed:
    """The key of dropout on a device, and the number of calls that have used it."""

    key: Tensor
    calls: int = 0

    def next_call(self) -> int:
        self.calls += 1
        return self.calls - 1


_keyed: ContextVar[_Keyed | None] = ContextVar("keyed dropout", default=None)


@contextmanager
def dropout_key(key: Tensor) -> Iterator[None]:
    """Draw dropout on devices from a key instead of torch's generator while the block runs.

    `key` is int64 (1) on the device. It may change between runs of a captured step, and must not change
    between a forward pass and its backward pass. The CPU keeps torch's generator.
    """
    token = _keyed.set(_Keyed(key))
    try:
        yield
    finally:
        _keyed.reset(token)


def current_dropout_key() -> Tensor | None:
    """Return the key of `dropout_key`, int64 (1) on its device; None outside of the block."""
    keyed = _keyed.get()
    return None if keyed is None else keyed.key


def dropout(x: Tensor, rate: float) -> Tensor:
    """Set each value to 0 with probability `rate`, and scale the others so that the expectation is unchanged.

    The random bits come from torch's generator: equal seeds drop the same values, with any number of
    threads. On devices other than the CPU they come from `dropout_key`; without one, this is
    `torch.nn.functional.dropout`.
    """
    by, keyed = engine(x.device), _keyed.get()
    if by is not Engine.NATIVE and keyed is None:
        return F.dropout(x, rate)
    dropped = round(rate * _STEPS)
    if not 0 <= dropped < _STEPS:
        raise ValueError(f"dropout rate {rate}: must be at least 0 and below 1")
    if not dropped:
        return x
    if by is Engine.NATIVE or keyed is None:
        return _apply(x, dropped)
    return _apply_keyed(x, keyed.key, keyed.next_call(), dropped)


def dropout_reference(x: Tensor, key: Tensor, call: int, dropped: int) -> Tensor:
    """Drop `dropped` of 65,536 values by a key, in call number `call`, in plain torch on any device.

    Value i has 16 bits of the Philox words of counter (i // 8, call, 0): halves 0 to 7, the low half of a
    word first. It is dropped if they are below `dropped`.
    """
    blocks = torch.arange(-(-x.numel() // _PER_BLOCK), device=x.device)
    zeros = torch.zeros_like(blocks)
    counters = torch.stack([blocks & WORD, blocks >> 32, zeros + call, zeros], dim=1)
    keys = torch.stack([key & WORD, key >> 32 & WORD], dim=1).expand(blocks.numel(), 2)
    words = philox_reference(keys, counters)
    bits = torch.stack([words & 0xFFFF, words >> 16], dim=2).flatten()[: x.numel()].view(x.shape)
    return x * ((bits >= dropped).double() * _scale(dropped)).to(x.dtype)


class _Context(FunctionCtx):
    saved_tensors: tuple[Tensor, ...]
    call: int
    dropped: int


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, x: Tensor, dropped: int) -> Tensor:
        count = x.numel()
        bits = pooled((-(-count // 4),), torch.int64).random_(-(1 << 63), None)
        drawn = bits.view(torch.int16)[:count].view(x.shape)
        scale = torch.ge(drawn, dropped - _STEPS // 2, out=pooled(tuple(x.shape), x.dtype))
        scale *= _scale(dropped)
        ctx.save_for_backward(scale)
        return torch.mul(x, scale, out=pooled(tuple(x.shape), x.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, gradient: Tensor) -> tuple[Tensor, None]:
        (scale,) = ctx.saved_tensors
        return torch.mul(gradient, scale, out=pooled(tuple(scale.shape), scale.dtype)), None


class _KeyedDropout(torch.autograd.Function):
    """Keyed dropout that saves only the key: the backward pass draws the same bits again."""

    @staticmethod
    def forward(ctx: _Context, x: Tensor, key: Tensor, call: int, dropped: int) -> Tensor:
        ctx.save_for_backward(key)
        ctx.call, ctx.dropped = call, dropped
        return _drop(x.detach(), key, call, dropped)

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (key,) = ctx.saved_tensors
        return _drop(gradient, key, ctx.call, ctx.dropped), None, None, None


def _drop(x: Tensor, key: Tensor, call: int, dropped: int) -> Tensor:
    if engine(x.device) is Engine.TRITON:
        from khop.kernels.triton.dropout import dropped as by_triton

        return by_triton(x, key, call, dropped, _scale(dropped))
    return dropout_reference(x, key, call, dropped)


def _scale(dropped: int) -> float:
    return _STEPS / (_STEPS - dropped)


# torch has no types for these.
_apply: Callable[[Tensor, int], Tensor] = _Dropout.apply
_apply_keyed: Callable[[Tensor, Tensor, int, int], Tensor] = _KeyedDropout.apply


def relu_(x: Tensor) -> Tensor:
    """Replace negative values by 0 in place and return the tensor; the bits equal `x.relu_()`.

    Differentiable once. On devices other than the CPU this is `torch.relu_`.
    """
    return _relu_apply(x) if engine(x.device) is Engine.NATIVE else x.relu_()


class _ReluContext(FunctionCtx):
    saved_tensors: tuple[Tensor, ...]

    def mark_dirty(self, *tensors: Tensor) -> None: ...


class _Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _ReluContext, x: Tensor) -> Tensor:
        out = x.relu_()
        ctx.mark_dirty(x)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: _ReluContext, gradient: Tensor) -> Tensor:
        (out,) = ctx.saved_tensors
        into = pooled(tuple(out.shape), out.dtype)
        torch.ops.aten.threshold_backward.grad_input(gradient, out, 0, grad_input=into)
        return into


# torch has no types for these.
_relu_apply: Callable[[Tensor], Tensor] = _Relu.apply
