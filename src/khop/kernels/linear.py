"""A product with the rows of a layer, by whichever of torch's two libraries is fast on this processor."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from khop.kernels.memory import pooled

ROWS_AT_ONCE = 4096  # oneDNN shares longer products out badly among threads (measured: 1.5 x slower)
FEW_ROWS = 1024  # fewer are not worth the calls


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias`, as torch.nn.functional.linear: x (rows, in), weight (out, in), bias (out).

    Differentiable once. Torch multiplies float32 with MKL, which uses half the width of an AMD processor's
    vector units; there, large products go to oneDNN, the other library in torch, at up to twice the speed.
    Which one is decided by processor, dtype and shape alone.
    """
    if not _is_for_onednn(x, weight):
        return F.linear(x, weight, bias)
    return _apply(x, weight, bias)


def _is_for_onednn(x: Tensor, weight: Tensor) -> bool:
    tensors = (x, weight)
    return (
        all(t.device.type == "cpu" and t.dtype == torch.float32 and t.dim() == 2 for t in tensors)
        and x.shape[0] >= FEW_ROWS
        and not torch.is_autocast_enabled("cpu")
        and onednn_is_faster()
    )


@cache
def onednn_is_faster() -> bool:
    """Whether this is an AMD processor with AVX-512, and torch has the calls."""
    return (
        _vendor() == "AuthenticAMD"
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def _vendor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")


class _Context(FunctionCtx):
    needs_input_grad: tuple[bool, ...]
    saved_tensors: tuple[Tensor, ...]


class _OneDnnLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else x[:0], weight)
        return _product(x.detach(), weight.detach(), None if bias is None else bias.detach())

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        gradient = gradient.contiguous()
        of_x = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            of_x = _product(gradient, weight.t().contiguous(), None)
        if ctx.needs_input_grad[1]:
            of_weight = _weight_gradient(gradient, x, weight)
        if ctx.needs_input_grad[2]:
            of_bias = gradient.sum(0)
        return of_x, of_weight, of_bias


# What torch leaves without types.
_apply: Callable[[Tensor, Tensor, Tensor | None], Tensor] = _OneDnnLinear.apply


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`x @ weight.T + bias`, some rows at a time, in reused memory."""
    out = pooled((x.shape[0], weight.shape[0]), x.dtype)
    for into, rows in zip(torch.split(out, ROWS_AT_ONCE), torch.split(x, ROWS_AT_ONCE), strict=True):
        into.copy_(torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], ""))
    return out


def _weight_gradient(gradient: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """`gradient.T @ x`, summed over some rows at a time: oneDNN's copies of them stay in the cache."""
    total = torch.zeros_like(weight)
    parts = zip(torch.split(gradient, ROWS_AT_ONCE), torch.split(x, ROWS_AT_ONCE), strict=True)
    for of_rows, rows in parts:
        operands = of_rows.to_mkldnn(), rows.contiguous().to_mkldnn()
        total += torch.ops.aten.mkldnn_linear_backward_weights(*operands, weight, False)[0].to_dense()
    return total
