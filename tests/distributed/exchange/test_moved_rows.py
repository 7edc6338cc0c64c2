"""Rows between ranks, here of one rank to itself; tests/processes has several."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.distributed.exchange import peers as moved_rows
from khop.distributed.exchange.peers import Peers, moved, open_peers, rounds, sent_to_all, summed
from khop.distributed.processes.group import ALONE
from support.forged_peers import ASKING as MESSAGE
from support.forged_peers import RANKS, Forged, header, message, peers_of

DTYPES = st.sampled_from([torch.bool, torch.int16, torch.int64, torch.float32, torch.bfloat16])


@given(count=st.integers(0, 5), shape=st.lists(st.integers(0, 3), max_size=2), dtype=DTYPES)
def test_rows_arrive_with_dtype_and_shape_and_outlive_the_next_exchange(
    count: int, shape: list[int], dtype: torch.dtype
) -> None:
    peers = open_peers(ALONE)
    rows = torch.arange(count * torch.Size(shape).numel()).view(count, *shape).to(dtype)
    (found,) = moved(peers, [rows], MESSAGE)
    (again,) = sent_to_all(peers, torch.ones_like(rows), MESSAGE)
    assert torch.equal(found, rows)
    assert torch.equal(again, torch.ones_like(rows))


def test_rounds_cover_every_row_once() -> None:
    peers = open_peers(ALONE)
    for count in (0, 1, moved_rows._AT_ONCE, 2 * moved_rows._AT_ONCE + 1):
        slices = list(rounds(peers, count, MESSAGE))
        assert [turn.start for turn in slices[1:]] == [turn.stop for turn in slices[:-1]]
        assert all(turn.stop - turn.start <= moved_rows._AT_ONCE for turn in slices)
        assert not slices or (slices[0].start, slices[-1].stop) == (0, count)
        assert bool(slices) is (count > 0)


def forged(monkeypatch: pytest.MonkeyPatch, of_ranks: Sequence[Sequence[int]]) -> Peers:
    """Rank 0 of three, which gets these numbers from each."""
    bodies = [torch.tensor(numbers, dtype=torch.int64).numpy().tobytes() for numbers in of_ranks]
    headers = b"".join(header(len(body)) for body in bodies)
    return peers_of(monkeypatch, Forged(headers, b"".join(message(body) for body in bodies)))


def test_numbers_are_summed_over_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    peers = forged(monkeypatch, [(1, 2), (10, 20), (100, 200)])
    assert summed(peers, torch.tensor([1, 2]), MESSAGE).tolist() == [111, 222]


def first_turn(peers: Peers) -> object:
    return next(rounds(peers, 5, MESSAGE))


def sums(peers: Peers) -> object:
    return summed(peers, torch.tensor([5]), MESSAGE)


@pytest.mark.parametrize("call", [first_turn, sums])
@pytest.mark.parametrize("numbers", [(), (5, 5)])
def test_a_rank_with_too_many_or_too_few_numbers_is_named(
    call: Callable[[Peers], object], numbers: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    peers = forged(monkeypatch, [(5,), numbers, (5,)])
    with pytest.raises(
        ValueError, match=f"^rank 1 sent another message .* {len(numbers)} (rows|numbers), where"
    ):
        call(peers)


@pytest.mark.parametrize("count", [-1, 1 << 62])
def test_an_impossible_number_of_rows_names_its_rank(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert RANKS == 3
    peers = forged(monkeypatch, [(5,), (5,), (count,)])
    with pytest.raises(
        ValueError, match=f"^rank 2 sent another message .* number of rows {count}, must be in"
    ):
        first_turn(peers)
