"""The best candidates, in blocks of any size, are those of a stable sort of all scores."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.inference.best_candidates import Best


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=7, max_size=7), min_size=1, max_size=4),
    st.integers(1, 9),
    st.integers(1, 8),
    st.sets(st.tuples(st.integers(0, 3), st.integers(0, 6))),
    st.lists(st.booleans(), min_size=7, max_size=7),
)
def test_blocks_do_not_change_them(
    rows: list[list[int]], k: int, block: int, left_out: set[tuple[int, int]], allowed: list[bool]
) -> None:
    pairs = sorted(pair for pair in left_out if pair[0] < len(rows))
    scores = torch.tensor(rows, dtype=torch.float32)
    ends = torch.tensor([*zip(*pairs, strict=True)] or [[], []], dtype=torch.int64)
    best = Best.of(
        lambda span: scores[:, span], 7, k, (ends[0], ends[1]), torch.tensor(allowed), block_size=block
    )
    for query, row in enumerate(rows):
        wanted = [c for c in range(7) if allowed[c] and (query, c) not in left_out]
        wanted = sorted(wanted, key=lambda candidate: -row[candidate])[:k]
        assert best.candidates[query].tolist() == wanted + [-1] * (k - len(wanted))
        shown = best.scores[query].tolist()
        assert shown == [row[c] for c in wanted] + [float("-inf")] * (k - len(wanted))


def test_scores_that_are_not_finite_are_refused() -> None:
    none = torch.empty(0, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"recommend: the score at .* is nan"):
        Best.of(lambda span: torch.full((1, 2), torch.nan), 2, 1, (none, none))
