"""Rows that lie elsewhere are asked for once each, and every wanted row knows its place."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.kernels.remote_rows import remote_rows, remote_rows_reference

FAR = 1 << 40


@given(
    count=st.sampled_from([0, 1, 9, 600, 20_000]),  # few are sorted otherwise than many
    largest=st.sampled_from([1, 300, 5_000, FAR]),
    first=st.integers(0, 40),
    held=st.integers(0, 200),
    share_kept=st.sampled_from([None, 0.0, 0.3, 1.0]),
    seed=st.integers(0, 1 << 30),
)
def test_places_and_questions_are_those_of_the_reference(
    count: int, largest: int, first: int, held: int, share_kept: float | None, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    ids = torch.randint(largest, (count,), generator=random)
    slots, kept = None, 0
    if share_kept is not None:
        kept = 11
        slots = torch.randint(kept, (count,), generator=random)
        slots[torch.rand(count, generator=random) >= share_kept] = -1
    places, asked = remote_rows(ids, first, first + held, slots=slots, kept=kept)
    wanted = remote_rows_reference(ids, first, first + held, slots=slots, kept=kept)
    assert torch.equal(places, wanted[0])
    assert torch.equal(asked, wanted[1])


def test_what_is_here_is_not_asked_for_and_what_is_kept_neither() -> None:
    ids, slots = torch.tensor([7, 3, 12, 7, 5, 90]), torch.tensor([-1, -1, 1, -1, -1, -1])
    places, asked = remote_rows(ids, 3, 6, slots=slots, kept=2)
    assert asked.tolist() == [7, 90]
    assert places.tolist() == [5, 0, 4, 5, 2, 6]  # three rows are here, two are kept, two are asked for
