"""Linear layers: one product, sums of several products with bias and ReLU, and products by group.

Products run in blocks of rows where this is faster on the processor, else in torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from khop.kernels.activations import relu_
from khop.kernels.choice import Engine, engine
from khop.kernels.lazy_rows import SparseRows
from khop.kernels.linear_blocks import Activation, linear_sum_blocks
from khop.kernels.linear_choice import CHOICES, FEW_ROWS
from khop.kernels.memory import LOAD_BYTES


class AutocastWeights:
    """Copies of the weights of linear layers in the dtype of autocast, kept between steps.

    A layer makes the copy of a weight when it first uses it; `update` brings all copies up to date at once.
    """

    def __init__(self) -> None:
        self._copies: dict[nn.Parameter, Tensor] = {}

    def update(self) -> None:
        """Copy all weights again, after they have changed. Nothing waits."""
        if self._copies:
            weights = [weight.detach() for weight in self._copies]
            torch._foreach_copy_(list(self._copies.values()), weights)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Let linear layers use the copies while the block runs."""
        token = _autocast_weights.set(self)
        try:
            yield
        finally:
            _autocast_weights.reset(token)

    def of(self, weight: nn.Parameter, dtype: torch.dtype) -> Tensor:
        """Return the copy of a weight, differentiable with respect to the weight."""
        if weight not in self._copies:
            self._copies[weight] = weight.detach().to(dtype)
        cast: Tensor = _apply_cast(weight, self._copies[weight])
        return cast


_autocast_weights: ContextVar[AutocastWeights | None] = ContextVar("autocast weights", default=None)


class _CastWeight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, weight: Tensor, copy: Tensor) -> Tensor:
        return copy.view_as(copy)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.float(), None


_apply_cast: Callable[[Tensor, Tensor], Tensor] = _CastWeight.apply  # torch has no types for it


def _cast_weight(weight: Tensor) -> Tensor:
    """Return the kept copy of a weight if autocast would lower it, else the weight itself."""
    kept, kind = _autocast_weights.get(), weight.device.type
    if kept is None or not isinstance(weight, nn.Parameter) or weight.dtype != torch.float32:
        return weight
    return kept.of(weight, torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else weight


class _Context(FunctionCtx):
    needs_input_grad: tuple[bool, ...]
    saved_tensors: tuple[Tensor, ...]
    activation: Activation
    dtypes: tuple[torch.dtype, ...]
    widths: tuple[int, ...]  # of the inputs and their weights


class _LinearSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _Context, activation: Activation, dtype: torch.dtype, bias: Tensor, *both: Tensor
    ) -> Tensor:
        count = len(both) // 2
        operands = [aligned(tensor, dtype) for tensor in both]
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


def aligned(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Return rows in a dtype, padded with zeros to a multiple of 16 bytes, as required by fast products.

    Rows are converted and copied at once. `F.pad` would fill the result with zeros first, and copy converted
    rows. Padding that a gather leaves in memory is not used: behind a slice of wider rows are other numbers.
    """
    width, over = rows.shape[1], rows.shape[1] * dtype.itemsize % LOAD_BYTES
    if not over:
        return rows.to(dtype)
    out = rows.new_empty(rows.shape[0], width + (LOAD_BYTES - over) // dtype.itemsize, dtype=dtype)
    out[:, :width].copy_(rows)
    out[:, width:].zero_()
    return out


# torch has no types for this.
_apply: Callable[..., Tensor] = _LinearSum.apply


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias`, as torch.nn.functional.linear: x (rows, in), weight (out, in), bias (out).

    Differentiable once if it is computed in blocks; see `khop.kernels.linear_choice`.
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
    weights = [_cast_weight(weight) for weight in weights]
    dtype = _block_dtype([*inputs, *weights], addend)
    blocks = None if dtype is None else CHOICES.blocks(dtype)
    if bias is not None and addend is None and inputs and engine(bias.device) is Engine.TRITON:
        kind = bias.device.type
        of = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else inputs[0].dtype
        return _apply(activation, of, bias, *inputs, *weights)
    if dtype is None or blocks is None:
        return _by_torch(inputs, weights, bias, addend, activation)
    return linear_sum_blocks(blocks, dtype, activation, bias, addend, *inputs, *weights)


def _by_torch(
    inputs: Sequence[Tensor],
    weights: Sequence[Tensor],
    bias: Tensor | None,
    addend: Tensor | None,
    activation: Activation,
) -> Tensor:
    # In place, because allocating memory costs more than the sum.
    if inputs:
        out = F.linear(inputs[0], weights[0], bias)
        for x, weight in zip(inputs[1:], weights[1:], strict=True):
            if engine(x.device) is Engine.NATIVE:
                out += F.linear(x, weight)
            else:  # added by the product; in the dtype of out, which autocast may have chosen
                out.addmm_(x.to(out.dtype), weight.t().to(out.dtype))
        if addend is not None:
            out += addend
    else:
        assert addend is not None
        out = addend.clone() if bias is None else addend + bias
    return relu_(out) if activation == "relu" else out


def _block_dtype(operands: Sequence[Tensor], addend: Tensor | None) -> torch.dtype | None:
    """Return the dtype of the result if blocks can compute it, else None (torch computes it)."""
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


TILE = 16  # rows of one group that are multiplied together; groups are padded to whole tiles


def grouped_linear(x: Tensor, weights: Tensor, groups: Tensor) -> Tensor:
    """Return (rows, out): row i of x times `weights[groups[i]]`.

    x is (rows, in), weights are (groups, out, in), groups int64 (rows). Rows are sorted by group into tiles
    of one group each, so that one batched product computes all groups.
    """
    count = weights.shape[0]
    ordered, order = groups.sort(stable=True)
    sizes = torch.bincount(groups, minlength=count)
    tiles = (sizes + (TILE - 1)) // TILE
    first_row, first_tile = sizes.cumsum(0) - sizes, tiles.cumsum(0) - tiles
    positions = torch.arange(x.shape[0], device=x.device)
    place = torch.empty_like(groups)
    place[order] = first_tile[ordered] * TILE + positions - first_row[ordered]
    of_tile = torch.repeat_interleave(torch.arange(count, device=x.device), tiles)
    padded = x.new_zeros(of_tile.numel() * TILE, x.shape[1]).index_copy(0, place, x)
    # index_select: its backward adds in a fixed order.
    matrices = weights.index_select(0, of_tile).transpose(1, 2)
    products = torch.bmm(padded.view(-1, TILE, x.shape[1]), matrices)
    return products.flatten(0, 1).index_select(0, place)
