"""Slots of a few of many ids: the position among those kept, or -1."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.kernels.id_slots import IdSlots


@given(
    st.sets(st.integers(0, 599)), st.lists(st.integers(0, 599)), st.sampled_from([torch.int32, torch.int64])
)
def test_an_id_finds_its_position_among_those_kept(
    kept: set[int], wanted: list[int], dtype: torch.dtype
) -> None:
    ids = sorted(kept)
    slots = IdSlots.of(torch.tensor(ids, dtype=torch.int64), 600)
    found = slots.find(torch.tensor(wanted, dtype=dtype))
    assert found.dtype == torch.int64
    assert found.tolist() == [ids.index(id_) if id_ in kept else -1 for id_ in wanted]


def test_all_ids_of_whole_blocks_may_be_kept() -> None:
    everything = torch.arange(3 * 128)
    assert torch.equal(IdSlots.of(everything, everything.numel()).find(everything), everything)


@pytest.mark.parametrize("count", [0, 1, 127, 128, 129, 1000])
def test_it_takes_as_many_bytes_as_it_says(count: int) -> None:
    slots = IdSlots.of(torch.arange(0, count, 3), count)
    assert slots.places.nbytes + slots.first_slots.nbytes == IdSlots.bytes_for(count)


def test_ids_that_do_not_ascend_or_do_not_exist_are_refused() -> None:
    for ids in ([3, 2], [2, 2]):
        with pytest.raises(ValueError, match="must ascend"):
            IdSlots.of(torch.tensor(ids), 5)
    with pytest.raises(ValueError, match=r"kept id 5 at position 1"):
        IdSlots.of(torch.tensor([2, 5]), 5)
    for wanted in (-1, 5):
        with pytest.raises(ValueError, match=rf"wanted id {wanted} at position 0"):
            IdSlots.of(torch.tensor([2]), 5).find(torch.tensor([wanted]))
