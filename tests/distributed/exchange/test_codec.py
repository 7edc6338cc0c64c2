"""Arrays come out of a message as they were put in, and nothing is read beyond its end."""

from __future__ import annotations

from math import prod

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.distributed.exchange.peers import (
    Reader,
    Writer,
    agreement,
    as_bytes,
    check_below,
    narrowest,
    padded,
)
from khop.draw import DrawKey

DTYPES = st.sampled_from([torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bool])
SHAPES = st.sampled_from([(), (3,), (2, 5), (0,)])


@given(arrays=st.lists(st.tuples(DTYPES, st.integers(0, 9), SHAPES), max_size=5))
def test_what_is_written_is_read_whichever_way_it_was_written(
    arrays: list[tuple[torch.dtype, int, tuple[int, ...]]],
) -> None:
    values = [
        torch.arange(count * prod(shape)).to(dtype).view(count, *shape) for dtype, count, shape in arrays
    ]
    size = sum(padded(each.nbytes) for each in values)
    message = torch.full((size,), 77, dtype=torch.uint8)  # as if it had been used before
    writer = Writer(message)
    for each, (dtype, count, shape) in zip(values, arrays, strict=True):
        writer.room(dtype, count, shape).copy_(each)
    assert torch.equal(message, as_bytes(values))
    reader = Reader(message)
    for each, (dtype, count, shape) in zip(values, arrays, strict=True):
        assert torch.equal(reader.take(dtype, count, shape), each)
    assert reader.is_done


@given(count=st.integers(0, 9), room=st.integers(0, 9))
def test_values_are_followed_by_zeros_up_to_their_room(count: int, room: int) -> None:
    values, message = (
        torch.arange(count) + 1,
        torch.full((padded(4 * (count + room)),), 77, dtype=torch.uint8),
    )
    Writer(message).put(values, torch.int32, count + room)
    assert Reader(message).take(torch.int32, count + room).tolist() == [*values.tolist(), *[0] * room]


@pytest.mark.parametrize("count", [-1, 3, 1 << 62])
def test_an_array_beyond_the_end_is_an_error(count: int) -> None:
    reader = Reader(torch.zeros(16, dtype=torch.uint8))
    with pytest.raises(ValueError, match=f"{count} rows of torch.int64 .* do not fit in the last 16 bytes"):
        reader.take(torch.int64, count)
    reader.numbers(1)
    with pytest.raises(ValueError, match="8 bytes are left after the last array"):
        reader.check_done()


def test_ids_take_32_bits_where_they_fit_and_are_checked() -> None:
    assert narrowest(1 << 31) == torch.int32
    assert narrowest((1 << 31) + 1) == torch.int64
    ids = torch.tensor([0, 6], dtype=torch.int32)
    assert Reader(as_bytes([ids])).below(7, 2, "node").tolist() == [0, 6]
    with pytest.raises(ValueError, match=r"node 6, must be in \[0, 6\)"):
        Reader(as_bytes([ids])).below(6, 2, "node")
    with pytest.raises(ValueError, match=r"node -1, must be in \[0, 6\)"):
        check_below(ids - 1, 6, "node")


def test_ranks_agree_on_equal_settings_alone() -> None:
    keys = [DrawKey(1), DrawKey(2), DrawKey(1, 5, 3), DrawKey(1, 5, 4), DrawKey(1, 6, 3)]
    facts = [(key, *of) for key in keys for of in ((1, "a"), (1, "b"), (2, "a"))]
    hashes = [agreement(*of) for of in facts]
    assert len(set(hashes)) == len(facts)
    assert all(0 <= each < 1 << 63 for each in hashes)
    assert hashes == [agreement(*of) for of in facts]
