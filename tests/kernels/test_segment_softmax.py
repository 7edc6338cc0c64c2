import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from khop.kernels.segment_attention import segment_softmax, segment_softmax_reference

TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-14, torch.bfloat16: 1e-2, torch.float16: 1e-3}


def rows_of(degrees: list[int]) -> Tensor:
    return torch.tensor([0, *degrees]).cumsum(0)


def some_scores(edges: int, heads: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    random = torch.Generator().manual_seed(edges)
    return (20 * torch.randn(edges, *heads, generator=random, dtype=torch.float64)).to(dtype)


@given(
    degrees=st.lists(st.sampled_from([0, 1, 2, 5, 16, 17, 100]), max_size=20),
    heads=st.sampled_from([(), (1,), (3,), (8,), (0,)]),
    dtype=st.sampled_from(list(TOLERANCE)),
)
def test_equals_the_reference_forward_and_backward(
    degrees: list[int], heads: tuple[int, ...], dtype: torch.dtype
) -> None:
    indptr = rows_of(degrees)
    scores = some_scores(sum(degrees), heads, dtype).requires_grad_()
    out, expected = segment_softmax(scores, indptr), segment_softmax_reference(scores, indptr)
    assert out.shape == scores.shape
    torch.testing.assert_close(out, expected, rtol=TOLERANCE[dtype] * 3, atol=TOLERANCE[dtype])
    weights = some_scores(sum(degrees) + 1, heads, dtype)[1:]
    (gradient,) = torch.autograd.grad(out, scores, weights)
    (expected_gradient,) = torch.autograd.grad(expected, scores, weights)
    torch.testing.assert_close(
        gradient, expected_gradient, rtol=30 * TOLERANCE[dtype], atol=60 * TOLERANCE[dtype]
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_powers_are_exact_over_the_whole_range(dtype: torch.dtype) -> None:
    lowest = -87.0 if dtype == torch.float32 else -708.0
    scores = torch.linspace(lowest, 0, 20_001, dtype=dtype)
    pairs = torch.stack([scores, torch.zeros_like(scores)], 1).flatten()
    power = segment_softmax(pairs, torch.arange(0, pairs.numel() + 1, 2)).view(-1, 2)
    exact = scores.double().exp()
    error = (power[:, 0].double() / power[:, 1].double() / exact - 1).abs().max()
    assert error < 4 * torch.finfo(dtype).eps


def test_gradients_are_those_of_finite_differences() -> None:
    scores = torch.randn(9, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    indptr = rows_of([3, 0, 1, 5])
    assert torch.autograd.gradcheck(lambda s: segment_softmax(s, indptr), (scores.requires_grad_(),))


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_bits_do_not_depend_on_the_number_of_threads(dtype: torch.dtype) -> None:
    indptr = rows_of([7, 0, 30, 1, 90] * 1000)
    before, results = torch.get_num_threads(), []
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        scores = some_scores(int(indptr[-1]), (2,), dtype).requires_grad_()
        out = segment_softmax(scores, indptr)
        out.backward(some_scores(int(indptr[-1]), (2,), dtype).flip(0))
        results.append((out.detach(), scores.grad))
    torch.set_num_threads(before)
    for out, gradient in results[1:]:
        assert torch.equal(out, results[0][0])
        assert torch.equal(gradient, results[0][1])


def test_infinities_and_nan_are_as_in_torch() -> None:
    infinity, nan = torch.inf, torch.nan
    rows = [[0.0, -infinity, 1.0], [-infinity, -infinity, -infinity], [0.0, infinity, 1.0], [nan, 0.0, 1.0]]
    scores = torch.tensor(rows)
    out = segment_softmax(scores.flatten(), rows_of([3, 3, 3, 3]))
    torch.testing.assert_close(out.view(4, 3), scores.softmax(1), equal_nan=True)
    assert out[1] == 0


def test_no_gradient_work_where_scores_need_none() -> None:
    assert segment_softmax(torch.zeros(3), rows_of([1, 2])).grad_fn is None


def test_scores_and_gradients_that_are_not_contiguous() -> None:
    scores = some_scores(6, (4,), torch.float32)
    strided = scores.t().contiguous().t().requires_grad_()
    out = segment_softmax(strided, rows_of([4, 2]))
    assert torch.equal(out, segment_softmax(scores, rows_of([4, 2])))
    out.sum().backward()
    assert strided.grad is not None
    assert strided.grad.abs().max() < 1e-6


@pytest.mark.parametrize(
    ("scores", "indptr", "message"),
    [
        (torch.zeros(3, 2, 2), rows_of([3]), r"scores are torch.float32 \(3, 2, 2\)"),
        (torch.zeros(3).int(), rows_of([3]), "scores are torch.int32"),
        (torch.zeros(3), rows_of([2]), "end with the number of edges, 3"),
        (torch.zeros(3), rows_of([3]).float(), "indptr is torch.float32"),
        (torch.zeros(3), rows_of([3]).to("meta"), "indptr is on meta"),
    ],
)
def test_what_has_no_softmax_is_said(scores: Tensor, indptr: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        segment_softmax(scores, indptr)


def test_autocast_may_hand_it_bfloat16_between_float32_weights() -> None:
    indptr = torch.tensor([0, 3, 3, 5])
    score = torch.nn.Linear(4, 2)
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        weights = segment_softmax(score(x), indptr)
    assert weights.dtype == torch.bfloat16
    (wanted,) = torch.autograd.grad(segment_softmax(score(x), indptr).square().sum(), score.weight)
    weights.float().square().sum().backward()
    assert score.weight.grad is not None
    torch.testing.assert_close(score.weight.grad, wanted, rtol=0.1, atol=0.02)
