"""Products with the rows of a layer, by whichever of torch's two libraries is fast on this processor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from khop.kernels.memory import pooled

ROWS_AT_ONCE = 4096  # what is made of so many rows stays in the caches of two cores; of one core, half of it
FEW_ROWS = 1024  # fewer are not worth the calls

Activation = Literal["none", "relu"]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias`, as torch.nn.functional.linear: x (rows, in), weight (out, in), bias (out).

    Differentiable once. Torch multiplies float32 with MKL, which uses half the width of an AMD processor's
    vector units; there, large products go to oneDNN, the other library in torch, at up to twice the speed.
    Which one is decided by processor, dtype and shape alone.
    """
    return linear_sum([x], [weight], bias)


def linear_sum(
    inputs: Sequence[Tensor],
    weights: Sequence[Tensor],
    bias: Tensor | None = None,
    addend: Tensor | None = None,
    activation: Activation = "none",
) -> Tensor:
    """activation(sum of `linear(x, weight)` over the inputs + bias + addend), addend (rows, out).

    At least one input or an addend. Some rows are taken through all of it, forward and backward, before the
    next ones are touched: what lies between is never written to main memory.
    """
    if not _is_for_onednn([*inputs, *weights], addend):
        return _by_torch(inputs, weights, bias, addend, activation)
    return _apply(activation, bias, addend, *inputs, *weights)


def _by_torch(
    inputs: Sequence[Tensor],
    weights: Sequence[Tensor],
    bias: Tensor | None,
    addend: Tensor | None,
    activation: Activation,
) -> Tensor:
    # In place: new memory costs more than the sum.
    if inputs:
        out = F.linear(inputs[0], weights[0], bias)
        for x, weight in zip(inputs[1:], weights[1:], strict=True):
            out += F.linear(x, weight)
        if addend is not None:
            out += addend
    else:
        assert addend is not None
        out = addend.clone() if bias is None else addend + bias
    return out.relu_() if activation == "relu" else out


def _is_for_onednn(operands: Sequence[Tensor], addend: Tensor | None) -> bool:
    tensors = operands if addend is None else [*operands, addend]
    return (
        len(operands) > 0
        and all(t.device.type == "cpu" and t.dtype == torch.float32 and t.dim() == 2 for t in tensors)
        and operands[0].shape[0] >= FEW_ROWS
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
    activation: Activation


class _OneDnnLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _Context, activation: Activation, bias: Tensor | None, addend: Tensor | None, *operands: Tensor
    ) -> Tensor:
        inputs, weights = _halves(operands)
        weight = _side_by_side(weights)
        out = pooled((inputs[0].shape[0], weight.shape[0]), weight.dtype)
        for rows in _spans(out):
            made = _product(_side_by_side([x[rows] for x in inputs]), weight, bias)
            if addend is not None:
                made += addend[rows]
            if activation == "relu":
                torch.clamp_min(made, 0, out=out[rows])
            else:
                out[rows] = made
        ctx.activation = activation
        ctx.save_for_backward(*operands, *([out] if activation == "relu" else []))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, gradient: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        operands, out = (saved, None) if ctx.activation == "none" else (saved[:-1], saved[-1])
        inputs, weights = _halves(operands)
        _, has_bias, has_addend, *has = ctx.needs_input_grad
        of_inputs = [
            pooled(tuple(x.shape), x.dtype) if needed else None
            for x, needed in zip(inputs, has[: len(inputs)], strict=True)
        ]
        into = [of_input for of_input in of_inputs if of_input is not None]
        turned = [w.t() for w, of_input in zip(weights, of_inputs, strict=True) if of_input is not None]
        back = torch.cat(turned) if turned else None
        whole = _side_by_side(weights)
        of_weight = torch.zeros_like(whole) if any(has[len(inputs) :]) else None
        of_bias = whole.new_zeros(whole.shape[0]) if has_bias else None
        of_addend = pooled(tuple(gradient.shape), gradient.dtype) if has_addend else None
        for rows in _spans(gradient):
            pull = _through_activation(gradient[rows], None if out is None else out[rows])
            if of_addend is not None:
                of_addend[rows] = pull
            if of_bias is not None:
                of_bias += pull.sum(0)
            if of_weight is not None:
                of_weight += _weight_gradient(pull, _side_by_side([x[rows] for x in inputs]), whole)
            if back is not None:
                for of_input, made in zip(into, _apart(_product(pull, back, None), into), strict=True):
                    of_input[rows] = made
        of_weights = [None] * len(weights) if of_weight is None else _apart(of_weight, inputs)
        return (None, of_bias, of_addend, *of_inputs, *of_weights)


# What torch leaves without types.
_apply: Callable[..., Tensor] = _OneDnnLinear.apply


def _halves(operands: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """The inputs, and as many weights."""
    half = len(operands) // 2
    return operands[:half], operands[half:]


def _side_by_side(columns: Sequence[Tensor]) -> Tensor:
    """One tensor of all columns: the sum of products with several is one product with that."""
    return columns[0].contiguous() if len(columns) == 1 else torch.cat(list(columns), dim=1)


def _apart(columns: Tensor, like: Sequence[Tensor]) -> Sequence[Tensor]:
    """The columns of each again."""
    return torch.split(columns, [tensor.shape[1] for tensor in like], dim=1)


def _spans(rows: Tensor) -> list[slice]:
    """So many at once."""
    step = ROWS_AT_ONCE if torch.get_num_threads() > 1 else ROWS_AT_ONCE // 2
    return [slice(first, first + step) for first in range(0, rows.shape[0], step)]


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    made: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return made


def _through_activation(gradient: Tensor, out: Tensor | None) -> Tensor:
    """The gradient before the activation whose results are `out`; None: there is no activation."""
    if out is None:
        return gradient.contiguous()
    found: Tensor = torch.ops.aten.threshold_backward(gradient, out, 0)
    return found


def _weight_gradient(gradient: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """`gradient.T @ x`."""
    operands = gradient.to_mkldnn(), x.to_mkldnn()
    found: Tensor = torch.ops.aten.mkldnn_linear_backward_weights(*operands, weight, False)[0].to_dense()
    return found
