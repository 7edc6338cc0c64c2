"""A batch reaches its device unchanged, however late a GPU copies and computes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from khop import Batch, Expansion, Loader, NeighborSampler
from khop.kernels.memory import pooled
from khop.loading.device.streams import Event, Stream
from khop.loading.device.transfer import Arrival, Transfer
from support.delaying_streams import DelayingStreams, Queue
from support.typed_shop import BUYS, shop, tensors

GRAPH = shop()


def loader(expansion: Expansion = Expansion.LAYERED) -> Loader:
    sampler = NeighborSampler(GRAPH, [2, 3], expansion=expansion)
    return Loader(sampler, {"item": torch.arange(9)}, 4, columns=["x"], seed_columns=["price"], shuffle=True)


class Numbers:
    """A value with tensors in pooled memory: views of one block, an empty one and one of its own."""

    def __init__(self, found: list[Tensor]) -> None:
        self.tensors = found

    @classmethod
    def made(cls, number: int, size: int = 40_000) -> Numbers:
        block = pooled((2 * size,), torch.int64).copy_(torch.arange(2 * size) * number)
        alone = pooled((size, 3), torch.float32).fill_(number)
        return cls([block[:size], block[size:], alone, torch.empty(0, 4), alone])

    def map(self, change: Callable[[Tensor], Tensor]) -> Numbers:
        return Numbers([change(tensor) for tensor in self.tensors])


@pytest.mark.parametrize("expansion", list(Expansion))
def test_a_batch_arrives_whole_with_its_views(expansion: Expansion) -> None:
    streams = DelayingStreams()
    transfer = Transfer(streams)
    for wanted in loader(expansion).epoch(0):
        found, arrival = transfer.send(wanted)
        arrival.wait()
        streams.run_all()
        pairs = list(zip(tensors(found), tensors(wanted), strict=True))
        assert all(torch.equal(ours, theirs) and ours.dtype == theirs.dtype for ours, theirs in pairs)
        assert all(ours.data_ptr() != theirs.data_ptr() for ours, theirs in pairs if theirs.numel())
        is_shared = expansion is Expansion.LAYERED  # blocks of a hop are views of few storages
        assert (len(arrival.tensors) < len(pairs)) == is_shared


def consumed(
    streams: DelayingStreams, transfer: Transfer, ahead: int, schedule: Iterator[int]
) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """Consume twelve values that are made ahead; yield results of kernels with what they must be."""
    line: deque[tuple[int, Numbers, Arrival]] = deque()
    for number in range(1, 13):
        line.append((number, *transfer.send(Numbers.made(number))))
        progress = next(schedule, 0)
        streams.queues[progress % len(streams.queues)].run(None if progress % 2 else 0)
        if len(line) > ahead:
            made, value, arrival = line.popleft()
            arrival.wait()
            del arrival
            yield [streams.read(tensor) for tensor in value.tensors], Numbers.made(made).tensors
            del value


def is_right(streams: DelayingStreams, ahead: int, schedule: list[int]) -> bool:
    transfer = Transfer(streams)
    results = list(consumed(streams, transfer, ahead, iter(schedule)))
    streams.run_all()
    return all(torch.equal(a, b) for found, wanted in results for a, b in zip(found, wanted, strict=True))


schedules = st.lists(st.integers(0, 5), max_size=12)


@given(ahead=st.integers(0, 4), schedule=schedules)
def test_kernels_read_what_was_sent_however_late_they_run(ahead: int, schedule: list[int]) -> None:
    assert is_right(DelayingStreams(), ahead, schedule)


class NoWait(DelayingStreams):
    """The consumer's stream does not wait for copies."""

    def wait(self, stream: Stream, event: Event) -> None:
        pass


class NoUse(DelayingStreams):
    """The allocator does not know who uses memory."""

    def used_on(self, tensor: Tensor, stream: Stream) -> None:
        pass


class Forgetting(DelayingStreams):
    """Events are passed at once, so host memory goes back before it is copied."""

    def record(self, stream: Stream) -> Event:  # type: ignore[override]
        assert isinstance(stream, Queue)
        return super().record(Queue())


@pytest.mark.parametrize("wrong", [NoWait, NoUse, Forgetting])
def test_each_missing_rule_is_seen(wrong: type[DelayingStreams]) -> None:
    """What the test above would find: copies go on while the consumer stands still, or nothing goes on."""
    assert not all(is_right(wrong(), 1, [first] * 12) for first in (0, 1, 3))


def test_memory_is_reused_after_its_last_use_and_an_allocation_never_waits() -> None:
    streams = DelayingStreams()
    transfer = Transfer(streams)
    for _ in consumed(streams, transfer, 1, iter(())):
        pass
    assert not any(queue.done for queue in streams.queues)
    late = len(streams.blocks)
    streams.run_all()
    for _ in consumed(streams, transfer, 1, iter(())):
        streams.run_all()
    assert len(streams.blocks) == late


def test_host_memory_is_copied_before_it_goes_with_the_transfer() -> None:
    streams = DelayingStreams()
    transfer = Transfer(streams)
    sent, _ = transfer.send(Numbers.made(7))
    del transfer
    assert all(torch.equal(a, b) for a, b in zip(sent.tensors, Numbers.made(7).tensors, strict=True))


def test_work_after_the_copies_is_part_of_the_arrival() -> None:
    streams = DelayingStreams()

    def doubled(value: Numbers) -> Numbers:
        return Numbers([*value.tensors, streams.read(value.tensors[2])])

    transfer = Transfer(streams)
    sent, arrival = transfer.send(Numbers.made(5), doubled)
    assert not sent.tensors[-1].any()
    arrival.wait()
    streams.queues[0].run()  # the consumer's
    assert torch.equal(sent.tensors[-1], sent.tensors[2])
    assert sent.tensors[-1].unique().tolist() == [5]


@pytest.mark.parametrize("threads", [1, 3])
def test_batches_of_a_loader_arrive_as_the_cpu_makes_them(
    monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    streams = DelayingStreams()
    monkeypatch.setattr("khop.api.loader.streams_of", lambda _: streams)
    sampler = NeighborSampler(GRAPH, [2, 3], edge_ids=True)
    settings: dict[str, Any] = {
        "columns": {"item": ["x"], "user": ["x"], BUYS: ["amount"]},
        "seed_columns": ["price"],
        "threads": threads,
    }
    delayed = Loader(sampler, {"item": torch.arange(20)}, 4, **settings)
    monkeypatch.undo()
    plain = Loader(sampler, {"item": torch.arange(20)}, 4, **settings)
    wanted = [tensors(batch) for batch in plain.epoch(0)]
    found = []
    for batch in delayed.epoch(0):
        found.append([streams.read(tensor) for tensor in tensors(batch)])
        del batch
    streams.run_all()
    assert len(found) == 5
    for ours, theirs in zip(found, wanted, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_a_loader_gives_its_batches_on_its_device() -> None:
    on_meta = Loader(NeighborSampler(GRAPH, [2]), {"item": torch.arange(9)}, 4, columns=["x"], device="meta")
    batches: list[Batch] = list(on_meta.epoch(0))
    assert len(batches) == 3
    assert all(tensor.is_meta for batch in batches for tensor in tensors(batch))
