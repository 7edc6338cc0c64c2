"""The ranks of a run: waits end with the missing rank, and one rank exchanges nothing.

Clocks of several machines are told apart by what cannot be: an answer before its question.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.distributed import DistNetworkError, HashStore
from torch.distributed.fsdp import fully_shard

from khop.distributed.placement import machine_ranks
from khop.distributed.processes.group import (
    ALONE,
    Group,
    RankValues,
    check_equal_settings,
    clock_offset,
    enter,
    leave,
    offset_between,
    shared_counter,
    this_group,
    unwrapped,
)
from khop.errors import PeerLost
from support.watched_ranks import ranks


def test_waiting_for_a_stage_ends_at_the_deadline_with_that_sentence() -> None:
    with ranks(2, silent=(0, 1)) as (first, _):
        group = Group(0, 2, 0, 2, 0.1, HashStore(), first)
        with pytest.raises(PeerLost, match=r"rank 1 \(host host-1\) no longer responds"):
            group.meet("evaluating")


def test_waiting_for_a_stage_ends_as_soon_as_the_group_has_broken_with_the_reason() -> None:
    """Which is known from then on, also when the store is gone."""
    with ranks(2, silent=(0, 1)) as (first, second):
        second.at("ending")
        second.failed("OSError: no space")
        first.heartbeat.send()
        store = HashStore()
        group = Group(0, 2, 0, 2, 60.0, store, first)
        with pytest.raises(PeerLost, match=r"^rank 1 \(host host-1\) failed ending: OSError: no space$"):
            group.meet("ending")
        assert first.heartbeat.broken


class LostStore(HashStore):
    """A store whose process has ended."""

    def add(self, key: str, amount: int) -> int:
        raise DistNetworkError("Connection reset by peer")

    def set(self, key: str, value: str) -> None:
        raise DistNetworkError("Connection reset by peer")


@pytest.mark.parametrize(
    "ask",
    [
        lambda group: group.meet("evaluating"),
        lambda group: RankValues(group, 0).others("digest", "loader 1", lambda missing, seconds: "late"),
        lambda group: shared_counter(group)(),
        lambda group: machine_ranks(group).texts("a"),
    ],
)
def test_a_store_that_is_lost_is_a_lost_peer(ask: Callable[[Group], object]) -> None:
    """A trainer saves its state then."""
    with pytest.raises(PeerLost, match="Connection reset by peer"):
        ask(Group(0, 2, 0, 2, 0.1, LostStore()))


def test_alone_everything_is_exchanged_with_oneself() -> None:
    values = torch.tensor([[1, 2], [3, 4]])
    assert torch.equal(ALONE.gather(values), values[None])
    assert ALONE.share_bytes(b"settings") == b"settings"
    assert ALONE.gather_bytes(b"") == [b""]
    assert ALONE.gather_bytes(b"a") == [b"a"]
    check_equal_settings(ALONE, {"seed": "1"})
    counter = shared_counter(ALONE)
    assert [counter(), counter(), counter()] == [0, 1, 2]


def test_counters_of_a_group_give_each_number_once() -> None:
    store = HashStore()
    ranks = [Group(rank, 2, store=store) for rank in range(2)]
    first, second = ([shared_counter(group) for group in ranks] for _ in range(2))
    assert [first[0](), first[1](), first[1](), first[0]()] == [0, 1, 2, 3]
    assert [second[1](), second[0]()] == [0, 1]


def test_the_group_of_a_process_is_the_one_it_entered_last() -> None:
    group = Group(1, 4)
    assert this_group() is ALONE
    enter(group)
    assert this_group() is group
    leave(group)
    assert this_group() is ALONE


def test_only_errors_of_exchanges_are_lost_peers() -> None:
    with pytest.raises(PeerLost, match="waited for another rank that did not answer: Connection closed"):
        broken("Connection closed by peer [10.0.0.2]")
    with pytest.raises(RuntimeError, match="shapes differ"):
        broken("shapes differ")


def broken(text: str) -> None:
    with Group(0, 2).exchanging("computing"):
        raise RuntimeError(text)


def test_a_wrapped_model_is_unwrapped() -> None:
    model = torch.nn.Linear(2, 2)
    assert unwrapped(model) is model
    with pytest.raises(ValueError, match=r"model 3: must be a torch\.nn\.Module"):
        unwrapped(3)  # type: ignore[arg-type]


def test_a_model_of_shards_is_refused_with_the_remedy() -> None:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        model = fully_shard(torch.nn.Linear(2, 2))
        with pytest.raises(ValueError, match=r"Linear: each rank has a shard .*full_state_dict=True"):
            unwrapped(model)
    finally:
        torch.distributed.destroy_process_group()


Way = st.floats(1e-5, 0.1)


def passed(rounds: list[tuple[float, float]], ahead: float) -> tuple[Tensor, Tensor]:
    """Exchanges of two sides that each take some way: own clock, the other's."""
    own: list[list[float]] = []
    other: list[list[float]] = []
    now = 0.0
    for there, back in rounds:
        met = now + max(there, back)  # both have entered, at `now`
        own.append([now + ahead, met + there + ahead])
        other.append([now, met + back])
        now = met + 1
    return torch.tensor(own, dtype=torch.float64), torch.tensor(other, dtype=torch.float64)


@given(st.lists(st.tuples(Way, Way), min_size=1, max_size=8), st.floats(1, 1e6))
def test_an_offset_is_found_to_half_the_quickest_exchange(
    rounds: list[tuple[float, float]], ahead: float
) -> None:
    own, other = passed(rounds, ahead)
    quickest = float(torch.minimum(own[:, 1] - own[:, 0], other[:, 1] - other[:, 0]).min())
    longest = max(float((own[:, 1] - own[:, 0]).min()), float((other[:, 1] - other[:, 0]).min()))
    assert abs(offset_between(own, other) - ahead) <= (quickest + longest) / 2 + 1e-6
    assert offset_between(other, own) == pytest.approx(-offset_between(own, other))


@given(st.lists(st.tuples(Way, Way), min_size=1, max_size=8))
def test_one_clock_is_not_corrected(rounds: list[tuple[float, float]]) -> None:
    assert offset_between(*passed(rounds, 0.0)) == 0.0


def test_a_process_alone_has_the_clock() -> None:
    assert clock_offset(ALONE) == 0.0
