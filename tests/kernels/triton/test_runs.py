"""Sums over many edges by Triton have the order of the CPU core, and a row's runs are of several programs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from khop.kernels import segment as by_core
from khop.kernels.csc import Csc
from khop.kernels.triton import runs, segment, segment_max, segment_weighted
from support.run_sums import sums_of_rows
from support.triton_rows import DEVICE
from support.triton_segments import DTYPES, FEW, assert_same_bits, by_triton

SMALL_RUN = 4
HAS_RUNS = (runs, segment, segment_max, segment_weighted)


@contextmanager
def small_runs() -> Iterator[None]:
    """Runs of 4 edges: a row of 100 has three levels of sums."""
    with pytest.MonkeyPatch.context() as patch, by_triton():
        for module in HAS_RUNS:
            patch.setattr(module, "RUN", tl.constexpr(SMALL_RUN))
        patch.setattr(runs, "HALF", tl.constexpr(SMALL_RUN // 2))
        yield


@st.composite
def some_rows(draw: st.DrawFn) -> tuple[Csc, Tensor]:
    """Rows of which some have many edges, with edges behind the last one, and x."""
    degrees = draw(st.lists(st.sampled_from([0, 1, 3, 4, 5, 8, 9, 16, 17, 65, 100, 256]), max_size=9))
    indptr = torch.tensor([0, *degrees]).cumsum(0)
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    spare = draw(st.sampled_from([0, 1, 40]))
    indices = torch.randint(11, (int(indptr[-1]) + spare,), generator=random, dtype=torch.int32)
    width, dtype = draw(st.sampled_from([1, 3, 20, 130])), draw(st.sampled_from(DTYPES))
    x = torch.randn(11, width, generator=random, dtype=torch.float64).to(dtype)
    return Csc(indptr, indices), x


def on_device(edges: Csc) -> Csc:
    return Csc(edges.indptr.to(DEVICE), edges.indices.to(DEVICE))


@pytest.mark.skipif(DEVICE.type != "cpu", reason="compiled kernels have runs of 512 edges")
@FEW
@given(given_rows=some_rows())
def test_runs_of_every_level_are_added_in_order(given_rows: tuple[Csc, Tensor]) -> None:
    edges, x = given_rows
    indices = edges.indices[: int(edges.indptr[-1])].long()
    expected = sums_of_rows(x[indices], edges.indptr, SMALL_RUN)
    weights = torch.randn(edges.num_edges, 1).to(expected.dtype)
    terms = x.to(expected.dtype)[indices] * weights[: indices.numel()]
    with small_runs():
        assert_same_bits(segment.segment_sum(x, edges), expected.to(x.dtype))
        weighted = segment_weighted.segment_weighted_sum(x, weights, edges)
    assert_same_bits(weighted, sums_of_rows(terms, edges.indptr, SMALL_RUN).to(x.dtype))


@pytest.mark.skipif(DEVICE.type != "cpu", reason="compiled kernels have runs of 512 edges")
@FEW
@given(given_rows=some_rows())
def test_the_gradient_of_a_maximum_is_added_in_runs(given_rows: tuple[Csc, Tensor]) -> None:
    """Parallel edges count once, also at the ends of two runs."""
    turned, gradient = given_rows
    count = int(turned.indptr[-1])
    rows = turned.indices[:count].long()
    sources = torch.arange(turned.num_rows).repeat_interleave(turned.indptr.diff())
    order = (sources * 11 + rows).argsort(stable=True)  # parallel edges are neighbors
    rows = rows[order]
    ordered = Csc(turned.indptr, rows.int())
    winners = torch.randint(max(1, turned.num_rows), gradient.shape, dtype=torch.int32)
    previous = torch.cat([torch.tensor([-1]), rows[:-1]])
    first = torch.zeros(count, dtype=torch.bool)
    first[turned.indptr[:-1][turned.indptr.diff() > 0]] = True
    counts = ((rows != previous) | first)[:, None] & (winners[rows] == sources[:, None])
    terms = torch.where(counts, gradient[rows], 0)
    with small_runs():
        found = segment_max.segment_max_gradient(gradient, winners, ordered)
    assert_same_bits(found, sums_of_rows(terms, turned.indptr, SMALL_RUN).to(gradient.dtype))


@pytest.mark.long
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("degrees", [[512], [3, 513, 0, 511], [600, 1, 1024, 1025]], ids=str)
def test_hubs_have_the_bits_of_the_core(degrees: list[int], dtype: torch.dtype) -> None:
    indptr = torch.tensor([0, *degrees]).cumsum(0)
    count = int(indptr[-1])
    x, indices = torch.randn(40, 3).to(dtype), torch.arange(count, dtype=torch.int32) * 7 % 40
    edges = Csc(indptr, indices)
    weights = torch.randn(count, 1, dtype=by_core.accumulator(dtype))
    turned = Csc(indptr, indices)  # as transposed edges of 40 destinations
    of_rows = torch.arange(41) * 5
    with by_triton():
        found = segment.segment_mean(x.to(DEVICE), on_device(edges)).cpu()
        weighted = segment_weighted.segment_weighted_sum(x.to(DEVICE), weights.to(DEVICE), on_device(edges))
        gradient = segment.segment_mean_gradient(x.to(DEVICE), of_rows.to(DEVICE), on_device(turned))
    assert_same_bits(found, by_core.segment_mean(x, indptr, indices))
    terms = x.to(weights.dtype)[indices.long()] * weights
    assert_same_bits(weighted.cpu(), sums_of_rows(terms, indptr).to(dtype))
    shares = x.to(weights.dtype) * (1 / of_rows.diff().to(weights.dtype))[:, None]
    assert_same_bits(gradient.cpu(), sums_of_rows(shares[indices.long()], indptr).to(dtype))


@pytest.mark.core(1)
@pytest.mark.parametrize("count", [100_000, 512 * 512 + 1])
def test_a_hub_of_many_edges_has_the_bits_of_the_core(count: int) -> None:
    x, indices = torch.randn(1000, 2), torch.arange(count + 3, dtype=torch.int32) * 7 % 1000
    indptr = torch.tensor([0, 3, 3 + count])
    with by_triton():
        found = segment.segment_sum(x.to(DEVICE), on_device(Csc(indptr, indices)))
    assert_same_bits(found.cpu(), by_core.segment_sum(x, indptr, indices))
