"""A process becomes a rank for a block, reports its error to the board, and leaves; here it is alone.

A store listens where it is told to, and on nothing else.

Ranks find those of their own attempt, whatever attempts before have left in the store.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations
from types import SimpleNamespace

import pytest
import torch
from torch import distributed
from torch.distributed import HashStore

from khop.distributed.processes.group import ALONE, Group, this_group
from khop.distributed.processes.launchers import Interface, RankInfo
from khop.distributed.processes.rendezvous import (
    Rendezvous,
    Round,
    arrive,
    check_cards,
    hosted_store,
    joined,
    reached_store,
    wait_for,
)
from khop.errors import PeerLost
from support.commands import free_port

LOOPBACK = Interface("lo", "127.0.0.1")
CPU = torch.device("cpu")


def info(port: int) -> RankInfo:
    return RankInfo(rank=0, world_size=1, local_rank=0, local_world_size=1, host="127.0.0.1", port=port)


def test_inside_the_block_the_process_is_a_rank() -> None:
    left: list[str] = []
    with joined(info(free_port()), CPU, 30.0, LOOPBACK) as group:
        assert this_group() is group
        assert distributed.get_world_size() == 1
        group.before_leaving.append(lambda: left.append("settled"))
        group.barrier()
    assert left == ["settled"]
    assert this_group() is ALONE
    assert not distributed.is_initialized()


@pytest.mark.parametrize("error", [KeyError("own"), KeyboardInterrupt(), SystemExit(0)], ids=str)
def test_after_an_error_the_process_is_no_rank(error: BaseException) -> None:
    groups: list[Group] = []
    with pytest.raises(type(error)):
        fail(groups, error)
    assert this_group() is ALONE
    assert not distributed.is_initialized()
    (group,) = groups
    assert group.watch is not None


def fail(groups: list[Group], error: BaseException) -> None:
    with joined(info(free_port()), CPU, 30.0, LOOPBACK) as group:
        groups.append(group)
        raise error


def test_a_port_that_is_taken_is_named() -> None:
    port = free_port()
    with joined(info(port), CPU, 30.0, LOOPBACK), pytest.raises(OSError, match=str(port)):
        joined(info(port), CPU, 30.0, LOOPBACK).__enter__()


@pytest.mark.parametrize(("device", "backend"), [("cpu", "gloo"), ("cuda", "cpu:gloo,cuda:nccl")])
def test_gpus_exchange_over_nccl_and_control_stays_on_gloo(
    monkeypatch: pytest.MonkeyPatch, device: str, backend: str
) -> None:
    chosen: list[str] = []

    def initialized(backend: str, **_: object) -> None:
        chosen.append(backend)
        raise KeyError("no group is needed here")

    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    card = SimpleNamespace(name="H200", uuid="GPU-1")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    monkeypatch.setattr(distributed, "init_process_group", initialized)
    with pytest.raises(KeyError, match="no group is needed here"):
        joined(info(free_port()), torch.device(device), 30.0, LOOPBACK).__enter__()
    assert chosen == [backend]


def connects(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=5).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize(("own", "other"), [("127.0.0.1", "127.0.0.2"), ("::1", "127.0.0.1")])
def test_a_store_is_reached_by_its_address_alone(own: str, other: str) -> None:
    store = hosted_store(own)
    store.set("key", "value")
    assert reached_store(1, own, store.port, 10.0).get("key") == b"value"
    assert connects(own, store.port)
    assert not connects(other, store.port)


def test_a_port_that_is_taken_and_an_address_that_is_not_here_are_named() -> None:
    store = hosted_store("127.0.0.1")
    with pytest.raises(
        OSError, match=rf"port {store.port} of this machine is in use, perhaps by another run"
    ):
        hosted_store("127.0.0.1", store.port)
    with pytest.raises(OSError, match=r"cannot listen on 203.0.113.9, port 0: Cannot assign"):
        hosted_store("203.0.113.9")


def test_a_store_without_a_host_is_an_error_within_the_deadline() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(PeerLost, match=rf"rank 3 could not connect to 127.0.0.1:{port} within 0.5 s"):
        reached_store(3, "127.0.0.1", port, 0.5)


def test_a_key_that_does_not_come_is_an_error_of_its_reader() -> None:
    store = hosted_store("127.0.0.1")
    store.set("b", "")
    assert wait_for(store, {0: "a", 1: "b", 2: "c"}, 0.1) == [0, 2]
    assert wait_for(store, {1: "b"}, 0.1) == []


def rank(number: int, attempt: int = 0) -> Rendezvous:
    return Rendezvous(f"node-{number}", f"10.0.0.{number}", attempt)


def arriving(store: HashStore, order: Sequence[int], attempts: Sequence[int] = (0, 0, 0)) -> list[Round]:
    """What each of three ranks finds when they come in this order."""
    with ThreadPoolExecutor(3) as pool:
        coming = {r: pool.submit(arrive, store, r, 3, rank(r, attempts[r]), 60.0) for r in order}
        return [coming[r].result() for r in range(3)]


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_ranks_rendezvous_in_any_order_and_again(order: Sequence[int]) -> None:
    store = HashStore()
    for number in (1, 2):
        first, *others = arriving(store, order)
        assert all(other == first for other in others)
        assert first.number == number
        assert first.attempt == number - 1
        assert [of_rank.host for of_rank in first.ranks.values()] == ["node-0", "node-1", "node-2"]


def test_an_incomplete_round_delays_no_later_one() -> None:
    store = HashStore()
    with pytest.raises(PeerLost):
        arrive(store, 0, 3, rank(0), 0.05)  # and is gone
    with pytest.raises(PeerLost):
        arrive(store, 2, 3, rank(2), 0.05)
    assert {met.number for met in arriving(store, (2, 1, 0))} == {2}


def test_launchers_that_count_differently_agree_on_the_most() -> None:
    """torchrun counts on each machine how often a process there has failed."""
    assert {met.attempt for met in arriving(HashStore(), (0, 1, 2), attempts=(0, 2, 1))} == {2}


@pytest.mark.parametrize("is_second_attempt", [False, True])
def test_missing_ranks_are_named_by_all(is_second_attempt: bool) -> None:
    store = HashStore()
    if is_second_attempt:
        arriving(store, (0, 1, 2))
    with pytest.raises(
        PeerLost, match=r"^ranks 0, 1 did not arrive within 0.05 s; those of 3 that did: 2 \(ho"
    ):
        arrive(store, 2, 3, rank(2), 0.05)
    store = HashStore()
    with pytest.raises(
        PeerLost, match=r"^ranks 1, 2 did not arrive within 0.05 s; those of 3 that did: 0 \(ho"
    ):
        arrive(store, 0, 3, rank(0), 0.05)


def arrived(*cards: str) -> dict[int, Rendezvous]:
    return {rank: Rendezvous("a", "10.0.0.1", 0, rank, card) for rank, card in enumerate(cards)}


def test_ranks_with_a_gpu_each_or_without_one_may_meet() -> None:
    check_cards(arrived("GPU-1", "GPU-2"))
    check_cards(arrived("", ""))


def test_two_ranks_on_one_gpu_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^ranks 1 and 2 use the same GPU of host a \(GPU-2\): start one"):
        check_cards(arrived("GPU-1", "GPU-2", "GPU-2"))


def test_a_card_is_told_to_the_other_ranks() -> None:
    store, own = HashStore(), Rendezvous("a", "10.0.0.1", 0, card="GPU-1")
    assert arrive(store, 0, 1, own, 30.0).ranks[0].card == "GPU-1"
