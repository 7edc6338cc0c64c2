"""Sums of matrix products with optional ReLU, computed by blocks of rows, forward and backward.

A block passes through all steps while it is in the processor's caches. Without blocks, every step reads and
writes all rows in main memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from khop.kernels.memory import pooled

Activation = Literal["none", "relu"]
Library = Literal["blas", "onednn"]
FEWEST_ROWS, MOST_ROWS = 64, 1 << 20  # limits of a block's rows, per thread


@dataclass(frozen=True)
class Blocks:
    """Settings of a blocked layer: the library, and the number of rows per thread."""

    library: Library  # blas: torch.mm, which is MKL in torch's wheels for x86; onednn: float32 only
    rows: int  # per thread of torch
    in_float32: bool = False  # widen bfloat16 rows, a block at a time, before multiplying them

    def __post_init__(self) -> None:
        if self.library not in get_args(Library):
            raise ValueError(f"library {self.library!r}: must be one of {', '.join(get_args(Library))}")
        if not FEWEST_ROWS <= self.rows <= MOST_ROWS:
            raise ValueError(f"rows {self.rows} of a block: must be {FEWEST_ROWS} to {MOST_ROWS}")

    def __str__(self) -> str:
        return f"{self.library}{'-float32' if self.in_float32 else ''}:{self.rows}"

    def can_compute(self, dtype: torch.dtype) -> bool:
        """Return True if this torch has the operators for rows of a dtype."""
        if self.in_float32 and dtype != torch.bfloat16:
            return False
        return self.library == "blas" or (has_onednn() and self.product_dtype(dtype) == torch.float32)

    @property
    def rows_at_once(self) -> int:
        """Rows of a block, for the current number of torch threads."""
        return self.rows * torch.get_num_threads()

    def product_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Return the dtype in which rows of a dtype are multiplied."""
        return torch.float32 if self.in_float32 else dtype


def has_onednn() -> bool:
    """Return True if this torch has oneDNN's products as operators."""
    is_there: bool = torch.backends.mkldnn.is_available()
    return is_there and hasattr(torch.ops.mkldnn, "_linear_pointwise")


class _Context(FunctionCtx):
    needs_input_grad: tuple[bool, ...]
    saved_tensors: tuple[Tensor, ...]
    blocks: Blocks
    dtype: torch.dtype
    activation: Activation
    bias_dtype: torch.dtype
    addend_dtype: torch.dtype


class _LinearSum(torch.autograd.Function):
    """Activation of (the sum of `x @ weight.T` + bias + addend), (rows, out), of `dtype`; at least one input.

    Inputs and weights of other dtypes are rounded to `dtype`
    first, as autocast does; gradients have the dtypes of their tensors. Differentiable once.
    """

    @staticmethod
    def forward(
        ctx: _Context,
        blocks: Blocks,
        dtype: torch.dtype,
        activation: Activation,
        bias: Tensor | None,
        addend: Tensor | None,
        *operands: Tensor,
    ) -> Tensor:
        inputs, weights = _halves(operands)
        wide = blocks.product_dtype(dtype)
        with torch.autocast("cpu", enabled=False):
            scratch = _Scratch()
            products = _products(blocks, [w.to(dtype).to(wide) for w in weights], scratch)
            added = None if bias is None else bias.to(dtype).to(wide)
            out = pooled((inputs[0].shape[0], weights[0].shape[0]), dtype)
            for rows in _spans(out, blocks):
                into = out[rows]
                made = into if wide == dtype else scratch.memory("made", into.shape, wide)
                made = products.forward(scratch.rounded([x[rows] for x in inputs], dtype, wide), added, made)
                if addend is not None:
                    made += addend[rows]
                _activate(made, activation, into)
        ctx.blocks, ctx.dtype, ctx.activation = blocks, dtype, activation
        ctx.bias_dtype = dtype if bias is None else bias.dtype
        ctx.addend_dtype = dtype if addend is None else addend.dtype
        ctx.save_for_backward(*operands, *([out] if activation == "relu" else []))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, gradient: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        operands, out = (saved, None) if ctx.activation == "none" else (saved[:-1], saved[-1])
        inputs, weights = _halves(operands)
        dtype, wide = ctx.dtype, ctx.blocks.product_dtype(ctx.dtype)
        _, _, _, has_bias, has_addend, *has = ctx.needs_input_grad
        of_inputs = [
            pooled(tuple(x.shape), x.dtype) if needed else None
            for x, needed in zip(inputs, has[: len(inputs)], strict=True)
        ]
        of_bias = _sums(gradient.shape[1:], dtype) if has_bias else None
        of_addend = pooled(tuple(gradient.shape), ctx.addend_dtype) if has_addend else None
        with torch.autocast("cpu", enabled=False):
            scratch = _Scratch()
            products = _products(ctx.blocks, [w.to(dtype).to(wide) for w in weights], scratch)
            sums = _WeightSums(products, weights, dtype) if any(has[len(inputs) :]) else None
            for rows in _spans(gradient, ctx.blocks):
                pull = _before_activation(gradient[rows], None if out is None else out[rows], scratch)
                if of_addend is not None:
                    of_addend[rows] = pull
                pull = scratch.cast("pull, wide", pull, wide)
                if of_bias is not None:
                    of_bias += pull.sum(0, dtype=of_bias.dtype)
                if sums is not None:
                    sums.add(pull, scratch.rounded([x[rows] for x in inputs], dtype, wide))
                if any(has[: len(inputs)]):
                    products.backward(pull, [None if x is None else x[rows] for x in of_inputs])
        of_weights = [None] * len(weights) if sums is None else sums.apart()
        of_bias = None if of_bias is None else of_bias.to(ctx.bias_dtype)
        return (None, None, None, of_bias, of_addend, *of_inputs, *of_weights)


# torch has no types for these.
linear_sum_blocks: Callable[..., Tensor] = _LinearSum.apply


class _Blas:
    """The three products of a block, with the same weights for all blocks, by torch.mm."""

    def __init__(self, weights: Sequence[Tensor], scratch: _Scratch) -> None:
        self._weights = weights
        self._scratch = scratch

    def forward(self, inputs: Sequence[Tensor], bias: Tensor | None, out: Tensor) -> Tensor:
        """Return the sum of `x @ weight.T` + bias, in `out` or in memory of the library."""
        first, *others = self._weights
        if bias is None:
            torch.mm(inputs[0], first.t(), out=out)
        else:
            torch.addmm(bias, inputs[0], first.t(), out=out)
        for x, weight in zip(inputs[1:], others, strict=True):
            out.addmm_(x, weight.t())
        return out

    def backward(self, gradient: Tensor, of_inputs: Sequence[Tensor | None]) -> None:
        """Set each of `of_inputs` to `gradient @ weight`, unless it is None."""
        for weight, into in zip(self._weights, of_inputs, strict=True):
            if into is not None and into.dtype == gradient.dtype:
                torch.mm(gradient, weight, out=into)
            elif into is not None:
                made = self._scratch.memory("of input", into.shape, gradient.dtype)
                into.copy_(torch.mm(gradient, weight, out=made))

    def add_weight_gradients(
        self, gradient: Tensor, inputs: Sequence[Tensor], of_weights: Sequence[Tensor]
    ) -> None:
        """Add `gradient.T @ x` to each of `of_weights`."""
        turned = gradient.t()
        for x, into in zip(inputs, of_weights, strict=True):
            if into.dtype == x.dtype:
                into.addmm_(turned, x)
            else:
                into += turned @ x


class _OneDnn:
    """Products by oneDNN with concatenated inputs: one product instead of several and their sum."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self._weights = weights
        self._whole = _side_by_side(weights)
        self._turned: Tensor | None = None

    def forward(self, inputs: Sequence[Tensor], bias: Tensor | None, out: Tensor) -> Tensor:
        return _pointwise(_side_by_side(inputs), self._whole, bias)

    def backward(self, gradient: Tensor, of_inputs: Sequence[Tensor | None]) -> None:
        into = [of_input for of_input in of_inputs if of_input is not None]
        if self._turned is None:
            needed = zip(self._weights, of_inputs, strict=True)
            self._turned = torch.cat([w.t() for w, of_input in needed if of_input is not None])
        made = _pointwise(gradient, self._turned, None)
        for of_input, columns in zip(into, _apart(made, into), strict=True):
            of_input.copy_(columns)

    def add_weight_gradients(
        self, gradient: Tensor, inputs: Sequence[Tensor], of_weights: Sequence[Tensor]
    ) -> None:
        operands = gradient.to_mkldnn(), _side_by_side(inputs).to_mkldnn()
        turned = torch.ops.aten.mkldnn_linear_backward_weights(*operands, self._whole, False)
        for into, columns in zip(of_weights, _apart(turned[0].to_dense(), inputs), strict=True):
            into += columns


class _WeightSums:
    """Gradients of the weights, summed over the blocks; in float32 for bfloat16."""

    def __init__(self, products: _Blas | _OneDnn, weights: Sequence[Tensor], dtype: torch.dtype) -> None:
        self._products = products
        self._dtypes = [weight.dtype for weight in weights]
        self._sums = [_sums(weight.shape, dtype) for weight in weights]

    def add(self, gradient: Tensor, inputs: Sequence[Tensor]) -> None:
        """Add the gradients of one block of rows."""
        self._products.add_weight_gradients(gradient, inputs, self._sums)

    def apart(self) -> list[Tensor]:
        """Return one gradient for each weight, in the weight's dtype."""
        return [total.to(dtype) for total, dtype in zip(self._sums, self._dtypes, strict=True)]


class _Scratch:
    """Memory that all blocks reuse, by purpose."""

    def __init__(self) -> None:
        self._memory: dict[tuple[str, int, torch.dtype], Tensor] = {}

    def memory(self, purpose: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return uninitialized (rows, columns). The first block of rows must be the largest."""
        rows, columns = shape
        key = purpose, columns, dtype
        if key not in self._memory:
            self._memory[key] = torch.empty(rows, columns, dtype=dtype)
        return self._memory[key][:rows]

    def cast(self, purpose: str, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the rows in a dtype, or the rows themselves if they already have it."""
        return rows if rows.dtype == dtype else self.memory(purpose, rows.shape, dtype).copy_(rows)

    def rounded(self, inputs: Sequence[Tensor], dtype: torch.dtype, wide: torch.dtype) -> Sequence[Tensor]:
        """Round inputs to one dtype, then convert them to the dtype of the products."""
        if all(x.dtype == dtype == wide for x in inputs):
            return inputs
        return [
            self.cast(f"input {number}", self.cast(f"input {number}", x, dtype), wide)
            for number, x in enumerate(inputs)
        ]


def _products(blocks: Blocks, weights: Sequence[Tensor], scratch: _Scratch) -> _Blas | _OneDnn:
    return _OneDnn(weights) if blocks.library == "onednn" else _Blas(weights, scratch)


def _activate(made: Tensor, activation: Activation, out: Tensor) -> None:
    if activation == "relu" and made.dtype == out.dtype:
        torch.clamp_min(made, 0, out=out)  # also correct if both are the same memory
    elif activation == "relu":
        out.copy_(made.clamp_min_(0))
    elif made is not out:
        out.copy_(made)


def _pointwise(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    made: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return made


def _before_activation(gradient: Tensor, out: Tensor | None, scratch: _Scratch) -> Tensor:
    """Return the gradient before the activation with results `out`; None: there is no activation."""
    if out is None:
        return gradient.contiguous()
    into = scratch.memory("pull", out.shape, out.dtype)
    torch.ops.aten.threshold_backward.grad_input(gradient, out, 0, grad_input=into)
    return into


def _sums(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return zeros of a dtype wide enough to sum many blocks."""
    return torch.zeros(tuple(shape), dtype=torch.float32 if dtype == torch.bfloat16 else dtype)


def _spans(rows: Tensor, blocks: Blocks) -> list[slice]:
    step = blocks.rows_at_once
    return [slice(first, first + step) for first in range(0, rows.shape[0], step)]


T = TypeVar("T")


def _halves(operands: Sequence[T]) -> tuple[Sequence[T], Sequence[T]]:
    """Return the inputs and the weights: the two halves of `operands`."""
    half = len(operands) // 2
    return operands[:half], operands[half:]


def _side_by_side(columns: Sequence[Tensor]) -> Tensor:
    return columns[0].contiguous() if len(columns) == 1 else torch.cat(list(columns), dim=1)


def _apart(columns: Tensor, like: Sequence[Tensor]) -> Sequence[Tensor]:
    """Split concatenated columns into the columns of each tensor."""
    return torch.split(columns, [tensor.shape[1] for tensor in like], dim=1)
