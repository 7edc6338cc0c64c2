"""A message is checked before a byte of it is used: fuzzed, by a network that delivers anything."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed

from khop.distributed.exchange.peers import Peers, open_peers
from khop.distributed.processes.group import Group
from khop.errors import PeerLost
from support.forged_peers import ASKING, LIMIT, RANKS, Forged, header, message, peers_of


def exchanged(network: Forged) -> list[bytes]:
    with pytest.MonkeyPatch.context() as patch:
        peers = peers_of(patch, network)
        found = peers.exchange([torch.empty(0, dtype=torch.uint8)] * RANKS, ASKING, LIMIT)
    return [values.numpy().tobytes() for values in found]


BODIES = st.lists(st.binary(max_size=40), min_size=RANKS, max_size=RANKS)


@given(bodies=BODIES)
def test_what_was_sent_comes(bodies: list[bytes]) -> None:
    headers = b"".join(header(len(body)) for body in bodies)
    assert exchanged(Forged(headers, b"".join(message(body) for body in bodies))) == bodies


@given(bodies=BODIES, data=st.data())
def test_a_header_with_any_wrong_number_names_its_sender(bodies: list[bytes], data: st.DataObject) -> None:
    numbers = torch.tensor([[ASKING.kind, 1 << 32 | 2, 0, len(body)] for body in bodies])
    rank, field = data.draw(st.integers(0, RANKS - 1)), data.draw(st.integers(0, 3))
    whole = st.integers(-(1 << 63), (1 << 63) - 1)
    if field == 3:
        whole = whole.filter(lambda size: not 0 <= size <= LIMIT)
    numbers[rank, field] = data.draw(whole.filter(lambda number: number != int(numbers[rank, field])))
    with pytest.raises(ValueError, match=f"^rank {rank} sent another message .* in epoch 1, step 2: "):
        exchanged(Forged(numbers.numpy().tobytes()))


@given(bodies=BODIES, data=st.data())
def test_a_message_cut_short_or_garbled_names_its_sender(bodies: list[bytes], data: st.DataObject) -> None:
    headers = b"".join(header(len(body)) for body in bodies)
    rank = data.draw(st.integers(0, RANKS - 1))
    messages = [message(body) for body in bodies]
    garbled = bytearray(messages[rank])
    at = data.draw(st.integers(len(garbled) - 24, len(garbled) - 1))
    garbled[at] ^= data.draw(st.integers(1, 255))
    messages[rank] = bytes(garbled)
    with pytest.raises(ValueError, match=f"^rank {rank} sent another message"):
        exchanged(Forged(headers, b"".join(messages)))


@given(noise=st.binary(min_size=RANKS * 32, max_size=RANKS * 32))
def test_noise_is_an_error(noise: bytes) -> None:
    with pytest.raises(ValueError, match=r"^rank 0 sent .* not a khop message, or truncated"):
        exchanged(Forged(noise))


def test_a_message_that_never_came_does_not_pass_for_an_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    peers = peers_of(monkeypatch, Forged(b""))
    with pytest.raises(ValueError, match="truncated"):
        peers.reply([torch.empty(0, dtype=torch.uint8)] * RANKS, [8] * RANKS, ASKING)


def test_alone_nothing_is_sent() -> None:
    peers = Peers(Group())
    payload = torch.arange(3, dtype=torch.uint8)
    assert peers.exchange([payload], ASKING, LIMIT) == [payload]
    assert peers.reply([payload], [3], ASKING) == [payload]
    assert peers.counts == {}


def test_an_own_error_is_no_lost_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: object, **__: object) -> None:
        raise RuntimeError("shapes differ")

    peers = peers_of(monkeypatch, Forged())
    monkeypatch.setattr(distributed, "all_to_all_single", breaks)
    with pytest.raises(RuntimeError, match="shapes differ"):
        peers.reply([torch.empty(0, dtype=torch.uint8)] * RANKS, [0] * RANKS, ASKING)


def test_what_is_noted_is_counted_until_the_next_batch() -> None:
    peers = Peers(Group())
    peers.counts["hits"] += 2
    peers.counts["hits"] += 3
    assert peers.counts == {"hits": 5}
    peers.begin(0, 1, lambda: False)
    assert peers.counts == {}


def test_connections_that_are_not_made_within_the_deadline_are_a_lost_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    over = threading.Event()
    monkeypatch.setattr(distributed, "new_group", lambda *_, **__: over.wait())
    with pytest.raises(
        PeerLost, match=r"did not answer: connecting for an exchange took longer than 0.05 s$"
    ):
        open_peers(Group(0, RANKS, deadline_s=0.05))
    over.set()


def test_connections_that_are_refused_are_a_lost_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(problem: str) -> Callable[..., None]:
        def new_group(*_: object, **__: object) -> None:
            raise RuntimeError(problem)

        return new_group

    monkeypatch.setattr(
        distributed, "new_group", refused("Gloo connectFullMesh failed with gloo/pair.cc\n..")
    )
    with pytest.raises(PeerLost, match=r"did not answer: Gloo connectFullMesh failed with gloo/pair.cc$"):
        open_peers(Group(0, RANKS))
    monkeypatch.setattr(distributed, "new_group", refused("a fault of one's own"))
    with pytest.raises(RuntimeError, match=r"^a fault of one's own$"):
        open_peers(Group(0, RANKS))


class OnDevice:
    """Work of a device: only its stream waits for it."""

    def __init__(self) -> None:
        self.waits: list[object] = []

    def wait(self, *timeout: object) -> bool:
        self.waits.append(timeout)
        return True


@pytest.mark.parametrize("backends", ["cpu:gloo,cuda:nccl", "gloo"])
def test_buffers_of_a_gpu_take_the_communicator_of_gradients_on_which_the_host_does_not_wait(
    monkeypatch: pytest.MonkeyPatch, backends: str
) -> None:
    opened, given, work = [], [], OnDevice()
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_backend_config", lambda: backends)
    monkeypatch.setattr(distributed, "group", SimpleNamespace(WORLD="gradients"))
    monkeypatch.setattr(distributed, "new_group", lambda *_, backend: opened.append(backend) or backend)
    monkeypatch.setattr(distributed, "all_to_all_single", lambda *_, group, **__: given.append(group) or work)
    peers = open_peers(Group(0, RANKS))
    for _ in range(2):
        peers.open_channel(torch.device("cuda:1"))
    has_nccl = "nccl" in backends
    assert opened == (["gloo"] if has_nccl else ["gloo", "nccl"])
    buffers = torch.empty((2, RANKS, 8), dtype=torch.uint8, device="meta")
    peers.swap(buffers[0], buffers[1], ASKING)
    assert given == (["gradients"] if has_nccl else ["nccl"])
    assert work.waits == [()]  # a limit in seconds would block the host
    assert peers.counts == {}


def test_buffers_of_the_host_take_the_channel_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    peers = peers_of(monkeypatch, Forged(bytes(range(3 * RANKS))))
    peers.open_channel(torch.device("cpu"))
    found = torch.zeros((RANKS, 3), dtype=torch.uint8)
    peers.swap(found, torch.zeros_like(found), ASKING)
    assert found.flatten().tolist() == list(range(3 * RANKS))


def test_waiting_for_a_device_ends_with_the_work_or_the_deadline() -> None:
    done = iter([False, False, True])
    Peers(Group(0, RANKS)).wait_until(lambda: next(done), ASKING)
    peers = Peers(Group(0, RANKS, deadline_s=0.01))
    with pytest.raises(PeerLost, match="asking for rows: no answer on the device"):
        peers.wait_until(lambda: False, ASKING)


def test_the_mark_of_a_buffer_names_its_sender() -> None:
    peers = Peers(Group(0, RANKS))
    due = peers.mark(ASKING, 1, 2)
    peers.check_mark(1, ASKING, due, peers.mark(ASKING, 1, 2))
    with pytest.raises(ValueError, match=r"^rank 1 sent another message .*: a message of epoch 1, step 3"):
        peers.check_mark(1, ASKING, due, peers.mark(ASKING, 1, 3))


OUTSIDE = -1  # the place of exchanges before the first batch


@pytest.mark.parametrize(
    ("own", "place", "number", "problem"),
    [
        ((1, 2), OUTSIDE, 0, "in epoch 1, step 2: a message of no batch."),
        (None, 1 << 32 | 2, 0, "asking for rows: a message of epoch 1, step 2."),
        (None, OUTSIDE, 3, "asking for rows: message 3 of no batch, where 0 is expected."),
        ((1, 2), 1 << 32 | 2, 3, "message 3 of epoch 1, step 2, where 0 is expected."),
    ],
)
def test_a_message_of_another_moment_is_named_also_outside_of_batches(
    own: tuple[int, int] | None, place: int, number: int, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers = peers_of(monkeypatch, Forged(header(0, place=place, number=number) * RANKS), own)
    with pytest.raises(ValueError, match=re.escape(problem)):
        peers.exchange([torch.empty(0, dtype=torch.uint8)] * RANKS, ASKING, LIMIT)
