"""Edges and rows for the tests of segments, and their comparison with the CPU core."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from khop.kernels.choice import Engine, forcing
from support import triton_interpreter as interpreter
from support.examples import few

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
FEW = settings(max_examples=few(2))  # the interpreter takes a tenth of a second for each
if not torch.cuda.is_available():
    interpreter.correct()
BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Edges:
    """Rows of edges, a third of them without any; parallel edges lie side by side in some."""

    indptr: Tensor
    indices: Tensor
    num_sources: int
    dtype: torch.dtype
    width: int

    @property
    def num_rows(self) -> int:
        return self.indptr.numel() - 1

    def values(self, rows: int, seed: int = 0) -> Tensor:
        """Random (rows, width), with zeros of both signs, infinities and NaN among them."""
        random = torch.Generator().manual_seed(seed)
        values = torch.randn(rows, self.width, generator=random, dtype=torch.float64) * 3
        strange = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan], dtype=torch.float64)
        if values.numel() > 20:
            values.view(-1)[: len(strange)] = strange
            values.view(-1)[7::11] = -0.0
        return values.to(self.dtype)


@st.composite
def some_edges(
    draw: st.DrawFn, widths: tuple[int, ...] = (0, 1, 3, 16, 100, 130), most_rows: int = 33
) -> Edges:
    rows, sources = draw(st.sampled_from([0, 1, 2, most_rows])), draw(st.sampled_from([1, 3, 40]))
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    degrees = (torch.rand(rows, generator=random) * 24 - 8).clamp(min=0).long()
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)])
    indices = torch.randint(sources, (int(indptr[-1]),), generator=random, dtype=torch.int32)
    if draw(st.booleans()) and indices.numel() > 1:
        indices[1::2] = indices[: indices.numel() // 2 * 2 : 2]
    dtype, width = draw(st.sampled_from(DTYPES)), draw(st.sampled_from(widths))
    return Edges(indptr, indices, sources, dtype, width)


@contextmanager
def by_triton() -> Iterator[None]:
    """Kernels for the CPU in place of a GPU, without NumPy's warnings of NaN and infinities.

    On a GPU tensors of the GPU have kernels anyway, and those of the CPU cannot have them.
    """
    with nullcontext() if torch.cuda.is_available() else forcing(Engine.TRITON), np.errstate(all="ignore"):
        yield


def with_gradient(
    operation: Callable[..., Tensor], x: Tensor, gradient: Tensor, *operands: Tensor
) -> tuple[Tensor, Tensor]:
    """Result and gradient with respect to x."""
    x = x.detach().requires_grad_()
    out = operation(x, *operands)
    return out.detach(), torch.autograd.grad(out, x, gradient)[0]


def assert_same_bits(found: Tensor, expected: Tensor) -> None:
    """NaN is NaN, whatever its payload; all other bits are equal, those of zeros too."""
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert torch.equal(found.isnan(), expected.isnan())
    bits = BITS[found.element_size()]
    found, expected = (t.masked_fill(t.isnan(), 0).contiguous().view(bits) for t in (found, expected))
    assert torch.equal(found, expected)
