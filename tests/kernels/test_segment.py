""""""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from khop.kernels.csc import Csc
from khop.kernels.segment import (
    prefix_and_mean,
    segment_max,
    segment_max_reference,
    segment_mean,
    segment_mean_reference,
    segment_sum,
    segment_sum_reference,
    transpose,
)
from khop.kernels.segment_attention import segment_dot, segment_dot_reference
from khop.kernels.segment_weighted import (
    merge_edges,
    segment_mixture,
    segment_mixture_reference,
)
from support.triton_rows import DEVICE
from support.triton_segments import by_triton

Segment = Callable[[Tensor, Tensor, Tensor], Tensor]
PAIRS = [
    pytest.param(segment_sum, segment_sum_reference, id="sum"),
    pytest.param(segment_mean, segment_mean_reference, id="mean"),
    pytest.param(segment_max, segment_max_reference, id="max"),
]
OPERATIONS = [pair.values[0] for pair in PAIRS]
# Of the sum of absolute values: what rounding of hundreds of terms, and of the result, may come to.
TOLERANCE = {torch.float32: 1e-5, torch.float64: 2e-14, torch.bfloat16: 2**-7, torch.float16: 2**-10}


@contextmanager
def compute_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def edges(
    rows: int, sources: int, mean_degree: float, seed: int, dtype: torch.dtype = torch.int32
) -> tuple[Tensor, Tensor]:
    """Random rows, a third of them empty."""
    random = torch.Generator().manual_seed(seed)
    degrees = (torch.rand(rows, generator=random) * 3 * mean_degree - mean_degree).clamp(min=0).long()
    if sources == 0:
        degrees.zero_()
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)])
    return indptr, torch.randint(max(sources, 1), (int(indptr[-1]),), generator=random, dtype=dtype)


def assert_near(actual: Tensor, exact: Tensor, size: Tensor, dtype: torch.dtype) -> None:
    assert actual.dtype == dtype
    assert actual.shape == exact.shape
    assert ((actual.double() - exact).abs() <= TOLERANCE[dtype] * size).all()


def some_x(sources: int, width: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(
        sources, width, generator=torch.Generator().manual_seed(width), dtype=torch.float64
    ).to(dtype)


shapes = st.fixed_dictionaries(
    {
        "rows": st.sampled_from([0, 1, 2, 33]),
        "sources": st.sampled_from([0, 1, 3, 50]),
        "width": st.sampled_from([0, 1, 7, 16, 47, 64, 100, 129, 260]),
        "mean_degree": st.sampled_from([0.0, 1.0, 20.0]),
        "seed": st.integers(0, 2**32),
        "index_dtype": st.sampled_from([torch.int32, torch.int64]),
        "dtype": st.sampled_from(list(TOLERANCE)),
    }
)


@pytest.mark.parametrize(("operation", "reference"), PAIRS)
@given(shape=shapes)
def test_equals_the_reference_forward_and_backward(
    operation: Segment, reference: Segment, shape: dict
) -> None:
    indptr, indices = edges(*(shape[k] for k in ("rows", "sources", "mean_degree", "seed", "index_dtype")))
    x = some_x(shape["sources"], shape["width"], shape["dtype"]).requires_grad_()
    weights = some_x(shape["rows"], shape["width"], shape["dtype"])
    out = operation(x, indptr, indices)
    (gradient,) = torch.autograd.grad(out, x, weights)

    exact_x = x.detach().double().requires_grad_()
    exact = reference(exact_x, indptr, indices)
    (exact_gradient,) = torch.autograd.grad(exact, exact_x, weights.double(), retain_graph=True)
    (gradient_size,) = torch.autograd.grad(exact, exact_x, weights.double().abs())
    assert_near(out, exact, reference(exact_x.abs(), indptr, indices), shape["dtype"])
    assert_near(gradient, exact_gradient, gradient_size, shape["dtype"])


@pytest.mark.parametrize(("operation", "reference"), PAIRS)
@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_the_reference_keeps_the_type(operation: Segment, reference: Segment, dtype: torch.dtype) -> None:
    indptr, indices = edges(rows=20, sources=30, mean_degree=4, seed=6)
    x = some_x(30, 5, dtype)
    out = reference(x, indptr, indices)
    assert out.dtype == dtype
    assert_near(
        operation(x, indptr, indices), out.double(), reference(x.double().abs(), indptr, indices), dtype
    )


@pytest.mark.parametrize("operation", OPERATIONS)
def test_gradients_are_those_of_finite_differences(operation: Segment) -> None:
    indptr, indices = edges(rows=5, sources=6, mean_degree=3, seed=3)
    x = some_x(6, 3, torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: operation(x, indptr, indices), (x,))


@pytest.mark.core(2)
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("operation", OPERATIONS)
def test_bits_do_not_depend_on_the_number_of_threads(operation: Segment, dtype: torch.dtype) -> None:
    indptr, indices = edges(rows=3000, sources=2000, mean_degree=10, seed=4)
    results = []
    for threads in (1, 2, 4):
        with compute_threads(threads):
            x = some_x(2000, 70, dtype).requires_grad_()
            out = operation(x, indptr, indices)
            out.backward(some_x(3000, 70, dtype))
            results.append((out.detach(), x.grad))
    for out, gradient in results[1:]:
        assert torch.equal(out, results[0][0])
        assert torch.equal(gradient, results[0][1])


def test_sums_run_in_edge_order() -> None:
    x = torch.tensor([[1e8], [1.0], [-1e8]])
    indptr = torch.tensor([0, 3, 6])
    indices = torch.tensor([0, 1, 2, 0, 2, 1], dtype=torch.int32)
    assert segment_sum(x, indptr, indices).tolist() == [[0.0], [1.0]]


@pytest.mark.parametrize(("dtype", "count"), [(torch.bfloat16, 1000), (torch.float16, 4100)], ids=str)
def test_half_floats_are_summed_in_float32(dtype: torch.dtype, count: int) -> None:
    """bfloat16 itself stops at 256, float16 at 2048."""
    x = torch.ones(count, 1, dtype=dtype)
    indptr, indices = torch.tensor([0, count]), torch.arange(count, dtype=torch.int32)
    assert segment_sum(x, indptr, indices).item() == count
    assert segment_mean(x, indptr, indices).item() == 1


@pytest.mark.parametrize("width", [1, 16, 19])  # one number at a time, and in groups
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_each_half_float_and_each_rounding_is_that_of_torch(dtype: torch.dtype, width: int) -> None:
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    other = every[torch.randperm(1 << 16, generator=torch.Generator().manual_seed(1))]
    rows = torch.cat([every, other]).view(dtype).unsqueeze(1).expand(-1, width).contiguous()
    first = torch.arange(1 << 16, dtype=torch.int32)
    for counts, wanted in (
        (1, rows[: 1 << 16]),
        (2, (rows[: 1 << 16].float() + rows[1 << 16 :].float()).to(dtype)),
    ):
        indptr = torch.arange((1 << 16) + 1) * counts
        indices = torch.stack([first, first + (1 << 16)], dim=1)[:, :counts].flatten()
        found = segment_sum(rows, indptr, indices)
        assert torch.equal(found.isnan(), wanted.isnan())
        assert torch.equal(found[~found.isnan()], wanted[~wanted.isnan()])


@pytest.mark.parametrize("operation", OPERATIONS)
def test_infinities_and_nan_pass_through(operation: Segment) -> None:
    for dtype in TOLERANCE:
        x = torch.tensor([[float("inf"), float("nan"), 1.0]], dtype=dtype)
        out = operation(x, torch.tensor([0, 1]), torch.zeros(1, dtype=torch.int32))
        torch.testing.assert_close(out, x, equal_nan=True)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_gradient_work_where_x_needs_none(operation: Segment) -> None:
    indptr, indices = edges(rows=4, sources=5, mean_degree=2, seed=0)
    out = operation(some_x(5, 3, torch.float32), indptr, indices)
    assert out.grad_fn is None


@pytest.mark.parametrize("operation", OPERATIONS)
def test_inputs_that_are_not_contiguous(operation: Segment) -> None:
    indptr, indices = edges(rows=9, sources=8, mean_degree=4, seed=5)
    x = some_x(8, 12, torch.float32)
    strided = operation(
        x.t().contiguous().t(),
        torch.stack([indptr, indptr], 1)[:, 0],
        torch.stack([indices, indices], 1)[:, 0],
    )
    assert torch.equal(strided, operation(x, indptr, indices))


def test_gradients_that_are_not_contiguous() -> None:
    x = torch.zeros(2, 3, requires_grad=True)
    segment_sum(x, torch.tensor([0, 2]), torch.tensor([1, 1])).sum().backward()  # sum's gradient is expanded
    assert x.grad is not None
    assert x.grad.tolist() == [[0.0] * 3, [2.0] * 3]


def test_the_gradient_of_a_maximum_goes_to_the_first_of_equals_once() -> None:
    x = torch.tensor([[1.0, 5.0], [3.0, 5.0], [3.0, 4.0]], requires_grad=True)
    indptr, indices = torch.tensor([0, 0, 5]), torch.tensor([0, 2, 2, 1, 1])
    out = segment_max(x, indptr, indices)
    assert out.tolist() == [[0.0, 0.0], [3.0, 5.0]]
    out.backward(torch.tensor([[7.0, 7.0], [10.0, 20.0]]))
    assert x.grad is not None
    assert x.grad.tolist() == [[0.0, 20.0], [0.0, 0.0], [10.0, 0.0]]


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("width", [3, 20])
def test_one_nan_makes_a_maximum_nan(dtype: torch.dtype, width: int) -> None:
    x = torch.arange(4.0).unsqueeze(1).repeat(1, width).to(dtype)
    x[1, 1] = torch.nan
    x.requires_grad_()
    out = segment_max(x, torch.tensor([0, 4]), torch.tensor([0, 1, 2, 3]))
    assert out.isnan().nonzero().tolist() == [[0, 1]]
    out.backward(torch.ones_like(out))
    assert x.grad is not None
    assert x.grad.nonzero().tolist() == [[1, 1]] + [[3, column] for column in range(width) if column != 1]


def test_rows_of_negative_infinities_keep_them() -> None:
    x = torch.full((2, 17), -torch.inf)
    assert torch.equal(segment_max(x, torch.tensor([0, 2]), torch.tensor([0, 1])), x[:1])


def test_transposed_edges_keep_their_order() -> None:
    turned = transpose(
        torch.tensor([0, 2, 2, 5]), torch.tensor([1, 3, 3, 1, 3], dtype=torch.int32), num_sources=4
    )
    assert turned.indptr.tolist() == [0, 0, 2, 2, 5]
    assert turned.indices.tolist() == [0, 2, 0, 2, 2]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_ids_of_64_bits_are_taken_where_32_do_not_suffice(operation: Segment) -> None:
    sources = 2**31 + 1
    x = torch.tensor([[1.5, 2.5]]).expand(sources, 2)  # one row in memory
    indptr, indices = torch.tensor([0, 2]), torch.tensor([sources - 1, 0])
    assert operation(x, indptr, indices).tolist() == operation(x[:1], indptr, torch.tensor([0, 0])).tolist()
    assert operation(x[1:, :0], indptr, indices - 1 + (indices == 0)).shape == (1, 0)
    with pytest.raises(ValueError, match=f"source id {sources - 1} at position 0"):
        operation(x[1:], indptr, indices)


GOOD_X, GOOD_INDPTR, GOOD_INDICES = torch.zeros(3, 2), torch.tensor([0, 1, 2]), torch.tensor([0, 2])


@pytest.mark.parametrize(
    ("x", "indptr", "indices", "message"),
    [
        (GOOD_X[0], GOOD_INDPTR, GOOD_INDICES, r"x is torch.float32 \(2,\)"),
        (GOOD_X.int(), GOOD_INDPTR, GOOD_INDICES, "x is torch.int32"),
        (GOOD_X, GOOD_INDPTR.int(), GOOD_INDICES, "indptr is torch.int32"),
        (GOOD_X, GOOD_INDPTR[:0], GOOD_INDICES, r"indptr is torch.int64 \(0,\)"),
        (GOOD_X, torch.tensor([1, 1, 2]), GOOD_INDICES, "indptr has 1 at position 0"),
        (GOOD_X, torch.tensor([0, 2, 1, 2]), GOOD_INDICES, "indptr has 1 at position 2"),
        (GOOD_X, torch.tensor([0, 1]), GOOD_INDICES, "end with the number of edges, 2"),
        (GOOD_X, GOOD_INDPTR, torch.tensor([0, 3]), r"source id 3 at position 1: must be in \[0, 3\)"),
        (GOOD_X, GOOD_INDPTR, torch.tensor([-1, 2]), "source id -1 at position 0"),
        (GOOD_X, GOOD_INDPTR, torch.tensor([0.0, 2.0]), "source ids are torch.float32"),
        (GOOD_X.to("meta"), GOOD_INDPTR, GOOD_INDICES, "x is on meta"),
        (GOOD_X, GOOD_INDPTR.to("meta"), GOOD_INDICES, "indptr is on meta"),
    ],
)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_edges_that_are_none_are_refused(
    operation: Segment, x: Tensor, indptr: Tensor, indices: Tensor, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        operation(x, indptr, indices)


@pytest.mark.parametrize(("operation", "reference"), PAIRS)
def test_autocast_may_hand_it_bfloat16_between_float32_weights(
    operation: Segment, reference: Segment
) -> None:
    indptr, indices = edges(rows=6, sources=9, mean_degree=3, seed=1)
    x = some_x(9, 4, torch.float32)
    before, after = torch.nn.Linear(4, 5), torch.nn.Linear(5, 2)
    with torch.autocast("cpu", torch.bfloat16):
        hidden = operation(before(x), indptr, indices)
        out = after(hidden)
        rounded = after(reference(before(x), indptr, indices))  # two sources may be equal in bfloat16 alone
    exact = after(operation(before(x), indptr, indices))
    assert (hidden.dtype, out.dtype) == (torch.bfloat16, torch.bfloat16)
    torch.testing.assert_close(out.float(), exact, rtol=0.05, atol=0.05)
    (wanted,) = torch.autograd.grad(rounded.float().square().sum(), before.weight)
    out.float().square().sum().backward()
    assert before.weight.grad is not None
    assert before.weight.grad.dtype == torch.float32
    torch.testing.assert_close(before.weight.grad, wanted, rtol=0.1, atol=0.1 * float(wanted.abs().max()))


@given(shape=shapes)
def test_the_first_rows_and_the_mean_are_what_they_are_apart_and_so_is_their_gradient(
    shape: dict[str, int],
) -> None:
    rows, sources, dtype = shape["rows"], shape["sources"] + shape["rows"], torch.float64
    indptr, indices = edges(rows, sources, shape["mean_degree"], shape["seed"], torch.int32)
    ours, theirs = (some_x(sources, shape["width"], dtype).requires_grad_() for _ in range(2))
    pulls = some_x(rows, shape["width"], dtype), 2 * some_x(rows, shape["width"], dtype)
    own, mean = prefix_and_mean(ours, indptr, indices)
    expected = theirs[:rows], segment_mean(theirs, indptr, indices)
    assert torch.equal(own, expected[0])
    assert torch.equal(mean, expected[1])
    torch.autograd.backward([own, mean], pulls)
    torch.autograd.backward(list(expected), pulls)
    torch.testing.assert_close(ours.grad, theirs.grad)


# Dot products over edges equal plain torch, with their gradients, on any number of threads.


def operands(seed: int, rows: int, sources: int, edges: int, width: int) -> tuple[Tensor, ...]:
    random = torch.Generator().manual_seed(seed)
    cuts = torch.randint(edges + 1, (max(rows - 1, 0),), generator=random).sort().values
    ends = [torch.tensor([0]), cuts, torch.tensor([edges])] if rows else [torch.tensor([0])]
    x = torch.randn(sources, width, generator=random, dtype=torch.float64)
    at = torch.randn(rows, width, generator=random, dtype=torch.float64)
    indices = torch.randint(max(sources, 1), (edges if rows else 0,), generator=random, dtype=torch.int32)
    return x, at, torch.cat(ends), indices


SIZES = tuple(st.integers(*ends) for ends in ((0, 99), (0, 9), (1, 9), (0, 40)))


@given(*SIZES, st.sampled_from([1, 2, 3]))
def test_values_and_gradients_are_those_of_the_reference(
    seed: int, rows: int, sources: int, edges: int, heads: int
) -> None:
    x, at, indptr, indices = operands(seed, rows, sources, edges, 6)
    results = []
    for function in (segment_dot, segment_dot_reference):
        given_x, given_at = x.clone().requires_grad_(), at.clone().requires_grad_()
        out = function(given_x, given_at, heads, indptr, indices)
        results.append((out.detach(), *torch.autograd.grad(out.sin().sum(), (given_x, given_at))))
    for found, wanted in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


def test_bits_do_not_depend_on_the_number_of_threads_segment_dot() -> None:
    x, at, indptr, indices = operands(1, 500, 400, 5000, 32)
    before, found = torch.get_num_threads(), []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        given_x, given_at = x.float().requires_grad_(), at.float().requires_grad_()
        out = segment_dot(given_x, given_at, 4, indptr, indices)
        found.append((out.detach(), *torch.autograd.grad(out.sin().sum(), (given_x, given_at))))
    torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 4}, "heads 4: must divide the 6 columns of x"),
        ({"rows": torch.zeros(3, 6)}, "rows are torch.float32"),
        ({"rows": torch.zeros(2, 6, dtype=torch.float64)}, "must be torch.float64"),
    ],
)
def test_operands_that_do_not_fit_are_named(change: dict[str, object], message: str) -> None:
    x, at, indptr, indices = operands(1, 3, 4, 9, 6)
    fitting = {"x": x, "rows": at, "heads": 2, "indptr": indptr, "indices": indices}
    with pytest.raises(ValueError, match=message):
        segment_dot(**{**fitting, **change})  # type: ignore[arg-type]


# Mixtures of rows and joined edges equal their references, on any number of threads.


DEGREES = st.lists(st.sampled_from([0, 1, 2, 5, 33]), max_size=10)


def some_edges(degrees: list[int], sources: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    indptr = torch.tensor([0, *degrees]).cumsum(0)
    random = torch.Generator().manual_seed(seed)
    return indptr, torch.randint(sources, (int(indptr[-1]),), generator=random, dtype=torch.int32)


def numbers(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def with_gradients(
    operation: Callable[..., Tensor], x: Tensor, weights: Tensor, *edges: Tensor
) -> list[Tensor]:
    x, weights = x.detach().requires_grad_(), weights.detach().requires_grad_()
    out = operation(x, weights, *edges)
    return [
        out.detach(),
        *torch.autograd.grad(out, (x, weights), numbers(*out.shape, dtype=out.dtype, seed=3).to(x.device)),
    ]


@given(degrees=DEGREES, width=st.sampled_from([1, 7, 8, 33, 64]), bases=st.sampled_from([1, 3, 8]))
def test_a_mixture_equals_the_reference_forward_and_backward(
    degrees: list[int], width: int, bases: int
) -> None:
    indptr, indices = some_edges(degrees, 9)
    operands = numbers(9, width), numbers(indices.numel(), bases, seed=1)
    found = with_gradients(segment_mixture, *operands, indptr, indices)
    expected = with_gradients(segment_mixture_reference, *operands, indptr, indices)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.long
def test_kernels_of_a_device_give_the_numbers_of_the_core() -> None:
    indptr, indices = some_edges([3, 0, 40, 1], 9)
    operands = numbers(9, 7), numbers(indices.numel(), 3, seed=1)
    expected = with_gradients(segment_mixture, *operands, indptr, indices)
    on_device = [each.to(DEVICE) for each in (*operands, indptr, indices)]
    with by_triton():
        found = with_gradients(segment_mixture, *on_device)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bits_do_not_depend_on_the_number_of_threads_segment_mixture(dtype: torch.dtype) -> None:
    indptr, indices = some_edges([7, 0, 30, 1, 90] * 60, 300)
    operands = numbers(300, 64, dtype=dtype), numbers(indices.numel(), 8, dtype=dtype, seed=1)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append(with_gradients(segment_mixture, *operands, indptr, indices))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(*pair) for others in results[1:] for pair in zip(results[0], others, strict=True))


def test_half_precision_is_computed_by_torch() -> None:
    indptr, indices = some_edges([2, 3], 4)
    x, weights = numbers(4, 8, dtype=torch.bfloat16), numbers(5, 2)
    expected = segment_mixture(x.double(), weights.bfloat16().double(), indptr, indices)
    torch.testing.assert_close(
        segment_mixture(x, weights, indptr, indices).double(), expected, rtol=0.1, atol=0.1
    )


def merged(
    edges: Sequence[Csc], firsts: Sequence[int], num_rows: int, num_sources: int
) -> tuple[Csc, Tensor]:
    numbers = torch.arange(num_rows)
    rows = torch.cat([numbers.repeat_interleave(each.indptr.diff()) for each in edges])
    sources = torch.cat([each.indices.long() + first for each, first in zip(edges, firsts, strict=True)])
    lengths = torch.tensor([each.num_edges for each in edges])
    relations = torch.arange(len(edges), dtype=torch.int32).repeat_interleave(lengths)
    order = rows.argsort(stable=True)
    indptr = torch.searchsorted(rows[order].contiguous(), torch.arange(num_rows + 1))
    return Csc(indptr, sources[order].int(), num_sources), relations[order]


@given(
    rows=st.integers(0, 7),
    degrees=st.lists(st.lists(st.integers(0, 4), min_size=7, max_size=7), min_size=1, max_size=5),
)
def test_edges_of_types_are_joined_by_row(rows: int, degrees: list[list[int]]) -> None:
    edges = [Csc(*some_edges(of_type[:rows], 6, seed)) for seed, of_type in enumerate(degrees)]
    firsts = [6 * (number % 2) for number in range(len(edges))]
    joined, relations = merge_edges(edges, firsts, rows, 12)
    expected, of_types = merged(edges, firsts, rows, 12)
    assert joined.indptr.tolist() == expected.indptr.tolist()
    assert joined.indices.tolist() == expected.indices.tolist()
    assert relations.tolist() == of_types.tolist()


def test_unfit_operands_are_errors() -> None:
    indptr, indices = some_edges([2, 3], 4)
    with pytest.raises(ValueError, match=r"weights are \(4, 2\): must be \(5, bases\)"):
        segment_mixture(numbers(4, 8), numbers(4, 2), indptr, indices)
    with pytest.raises(ValueError, match="source"):
        merge_edges([Csc(indptr, indices)], [0], 2, 1)
