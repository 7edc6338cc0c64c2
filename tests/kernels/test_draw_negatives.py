"""Exact negatives: the kernel, its torch reference and plain integers agree, and the draws are even."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.draw import DrawKey
from khop.kernels.csc import Csc
from khop.kernels.draw_negatives import (
    Candidates,
    NegativeDraw,
    NothingLeft,
    Partners,
    draw_negatives,
    draw_negatives_reference,
)
from khop.testing.reference import negatives

KEY, STREAM = DrawKey(77), 5


@st.composite
def questions(draw: st.DrawFn) -> tuple[Candidates, Partners | None, list[list[int]], list[int] | None]:
    """Candidates with weights (zero too) or without, partners of three sources, a limit per link or none."""
    count = draw(st.integers(1, 12))
    weights = draw(st.none() | st.lists(st.integers(0, 1 << 40), min_size=count, max_size=count))
    before = None if weights is None else torch.tensor([0, *accumulate(weights)])
    candidates = Candidates(count, before)
    rows = [sorted(draw(st.sets(st.integers(0, count - 1)))) for _ in range(3)]
    limits = draw(st.none() | st.lists(st.integers(0, count), min_size=3, max_size=3))
    if draw(st.booleans()):
        return candidates, None, [[], [], []], limits
    indptr = torch.tensor([0, *accumulate(len(row) for row in rows)])
    dtype = draw(st.sampled_from([torch.int32, torch.int64]))
    ranks = torch.tensor([rank for row in rows for rank in row], dtype=dtype)
    return candidates, Partners.of(Csc(indptr, ranks), candidates), rows, limits


@given(question=questions(), per_positive=st.integers(1, 6), first=st.integers(0, 2**62))
def test_draws_are_the_specified_ones(
    question: tuple[Candidates, Partners | None, list[list[int]], list[int] | None],
    per_positive: int,
    first: int,
) -> None:
    candidates, partners, rows, limits = question
    before = candidates.weights_before
    weights = [1] * candidates.count if before is None else before.diff().tolist()
    positions = torch.arange(first, first + 3)
    expected = [
        negatives(KEY.value, position, STREAM, _left(weights, row, limit), per_positive)
        for position, row, limit in zip(
            positions.tolist(), rows, limits or [candidates.count] * 3, strict=True
        )
    ]
    for kernel in (draw_negatives, draw_negatives_reference):
        drawn = kernel(
            NegativeDraw(
                candidates,
                partners,
                torch.arange(3),
                positions,
                per_positive,
                KEY,
                STREAM,
                limits=None if limits is None else torch.tensor(limits),
            )
        )
        if isinstance(drawn, NothingLeft):
            assert drawn.link == expected.index([])
        else:
            assert drawn.tolist() == expected


def _left(weights: list[int], partners: list[int], limit: int) -> list[int]:
    return [0 if rank in partners or rank >= limit else weight for rank, weight in enumerate(weights)]


@pytest.mark.parametrize("weights", [None, [1, 0, 3, 2, 4, 0, 2, 3]])
def test_what_is_left_is_drawn_in_proportion(weights: list[int] | None) -> None:
    before = None if weights is None else torch.tensor([0, *accumulate(weights)])
    candidates = Candidates(8, before)
    partners = Partners.of(Csc(torch.tensor([0, 2]), torch.tensor([2, 6])), candidates)
    links = 20_000
    drawn = draw_negatives(
        NegativeDraw(candidates, partners, torch.zeros(links).long(), torch.arange(links), 2, KEY, STREAM)
    )
    assert isinstance(drawn, torch.Tensor)
    left = _left(weights or [1] * 8, [2, 6], 8)
    seen = Counter(drawn.flatten().tolist())
    expected = [2 * links * weight / sum(left) for weight in left]
    assert set(seen) == {rank for rank, weight in enumerate(left) if weight}
    chi_square = sum((seen[rank] - mean) ** 2 / mean for rank, mean in enumerate(expected) if mean)
    assert chi_square < 25  # 5 degrees of freedom at most: exceeded once in 7,000 keys


@pytest.mark.parametrize("free", [(1 << 20) - 1, 1 << 20, (1 << 20) + 1])
def test_the_width_of_a_draw_changes_at_two_to_the_twenty(free: int) -> None:
    drawn = draw_negatives(
        NegativeDraw(Candidates(free), None, torch.tensor([0]), torch.tensor([9]), 3, KEY, STREAM)
    )
    assert isinstance(drawn, torch.Tensor)
    assert drawn.tolist() == [negatives(KEY.value, 9, STREAM, free, 3)]


def test_no_links_draw_nothing() -> None:
    none = torch.empty(0, dtype=torch.int64)
    for kernel in (draw_negatives, draw_negatives_reference):
        drawn = kernel(NegativeDraw(Candidates(5), None, none, none, 3, KEY, STREAM))
        assert isinstance(drawn, torch.Tensor)
        assert drawn.shape == (0, 3)


@pytest.mark.parametrize(
    ("sources", "limits", "message"),
    [
        ([3], None, "sources from 3 to 3: must be from 0 to 1"),
        ([1], [6], "limits from 6 to 6: must be from 0 to 5"),
        ([1, 1], None, r"sources are torch.int64 \(2,\): must be int64 \(1\)"),
    ],
)
def test_operands_that_do_not_fit_are_named(
    sources: list[int], limits: list[int] | None, message: str
) -> None:
    partners = Partners(Csc(torch.tensor([0, 1, 1]), torch.tensor([2])))
    with pytest.raises(ValueError, match=message):
        draw_negatives(
            NegativeDraw(
                Candidates(5),
                partners,
                torch.tensor(sources),
                torch.tensor([0]),
                1,
                KEY,
                STREAM,
                limits=None if limits is None else torch.tensor(limits),
            )
        )
