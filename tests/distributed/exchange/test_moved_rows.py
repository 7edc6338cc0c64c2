"""Rows between ranks, here of one rank to itself; tests/processes has several."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.distributed.exchange.lanes import Lanes
from khop.distributed.exchange.peers import Peers, moved, open_peers, sent_to_all
from khop.distributed.link_split import LinkSums
from khop.distributed.owners import PartitionOwners, RankOwners, summed
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


def forged(monkeypatch: pytest.MonkeyPatch, of_ranks: Sequence[Sequence[int]]) -> Peers:
    """Rank 0 of three, which gets these numbers from each."""
    bodies = [torch.tensor(numbers, dtype=torch.int64).numpy().tobytes() for numbers in of_ranks]
    headers = b"".join(header(len(body)) for body in bodies)
    return peers_of(monkeypatch, Forged(headers, b"".join(message(body) for body in bodies)))


def sums(peers: Peers, numbers: list[int]) -> torch.Tensor:
    lanes = cast(Lanes, SimpleNamespace(peers=peers, is_lane=False))
    owners = RankOwners(PartitionOwners(RANKS, 0, RANKS), lanes)
    return summed(owners, torch.tensor(numbers), LinkSums())


def test_numbers_are_summed_over_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LinkSums, "stage", MESSAGE.stage)
    peers = forged(monkeypatch, [(1, 2), (10, 20), (100, 200)])
    assert sums(peers, [1, 2]).tolist() == [111, 222]


@pytest.mark.parametrize("numbers", [(), (5, 5)])
def test_a_rank_with_too_many_or_too_few_numbers_is_named(
    numbers: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LinkSums, "stage", MESSAGE.stage)
    peers = forged(monkeypatch, [(5,), numbers, (5,)])
    with pytest.raises(ValueError, match=f"^rank 1 sent another message .* {len(numbers)} rows, where 1 are"):
        sums(peers, [5])
