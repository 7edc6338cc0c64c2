"""Streams without a GPU. They delay all work as long as they may, and reuse memory as soon as they may.

Work runs only when a host waits for it, when running work waits for it, or when a test lets a stream run. It
reads and writes addresses, as a GPU does: nothing keeps a tensor alive for it. A call of a thread that has
not selected the device is refused, as it would take memory of the first device.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from weakref import finalize

import torch
from torch import Tensor

from khop.loading.device.streams import Event, Stream

_SELECTED = threading.local()


@contextmanager
def device_selected() -> Iterator[None]:
    before, _SELECTED.is_set = getattr(_SELECTED, "is_set", False), True
    try:
        yield
    finally:
        _SELECTED.is_set = before


def check_selected() -> None:
    thread = threading.current_thread()
    has_selected = thread is threading.main_thread() or getattr(_SELECTED, "is_set", False)
    assert has_selected, f"{thread.name} uses the device that is current, not that of its batches"


@dataclass(eq=False)
class Queue:
    """A stream: work in order, of which the first `done` entries have run."""

    work: list[Callable[[], object]] = field(default_factory=list)
    done: int = 0

    def run(self, until: int | None = None) -> None:
        """Run work up to a position, or all of it."""
        while self.done < (len(self.work) if until is None else until):
            task = self.work[self.done]
            self.done += 1
            task()


@dataclass(frozen=True)
class Point:
    """An event of a queue."""

    queue: Queue
    position: int

    def query(self) -> bool:
        check_selected()
        return self.queue.done >= self.position

    def synchronize(self) -> None:
        check_selected()
        self.queue.run(self.position)


@dataclass(eq=False)
class Block:
    """Memory of the device."""

    buffer: Tensor
    queue: Queue  # it was allocated for
    users: set[Queue] = field(default_factory=set)
    pending: list[Point] | None = None  # once it is dead: what has to pass before other use

    @property
    def is_free(self) -> bool:
        return self.pending is not None and all(point.query() for point in self.pending)

    def release(self) -> None:
        self.pending = [Point(user, len(user.work)) for user in self.users]


class DelayingStreams:
    """Streams of a device whose memory is the host's."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.queues = [Queue()]
        self.blocks: list[Block] = []
        self._local = threading.local()
        self._by_address: dict[int, Block] = {}
        self._results: list[Tensor] = []

    def side(self) -> Queue:
        self.queues.append(Queue())
        return self.queues[-1]

    background = side

    def current(self) -> Queue:
        return getattr(self._local, "queue", self.queues[0])

    def selected(self) -> AbstractContextManager[object]:
        return device_selected()

    @contextmanager
    def issuing(self, stream: Stream) -> Iterator[None]:
        before = self.current()
        self._local.queue = stream
        try:
            with device_selected():
                yield
        finally:
            self._local.queue = before

    def record(self, stream: Stream) -> Point:
        assert isinstance(stream, Queue)
        check_selected()
        return Point(stream, len(stream.work))

    def wait(self, stream: Stream, event: Event) -> None:
        assert isinstance(stream, Queue)
        stream.work.append(event.synchronize)

    def pinned(self, tensor: Tensor) -> Tensor:
        check_selected()
        return tensor.contiguous()

    def copied(self, tensor: Tensor) -> Tensor:
        check_selected()
        made = self.allocated(tensor)
        self._move(made.data_ptr(), tensor.data_ptr(), tensor.nbytes)
        return made

    def used_on(self, tensor: Tensor, stream: Stream) -> None:
        assert isinstance(stream, Queue)
        block = self._by_address.get(tensor.untyped_storage().data_ptr())
        if block is not None:  # results of `read` are never reused
            block.users.add(stream)

    def read(self, tensor: Tensor) -> Tensor:
        """Issue a kernel that reads a tensor; return its result, to look at after the kernel has run."""
        assert tensor.is_contiguous()
        result = torch.zeros_like(tensor)
        self._results.append(result)
        self._move(result.data_ptr(), tensor.data_ptr(), tensor.nbytes)
        return result

    def run_all(self) -> None:
        for queue in self.queues:
            queue.run()

    def allocated(self, like: Tensor) -> Tensor:
        """Return memory for a tensor: reused if a GPU's allocator might, else fresh and full of rubbish."""
        queue, size = self.current(), like.nbytes
        if size == 0:
            return torch.empty_like(like, memory_format=torch.contiguous_format)
        block = next(
            (b for b in self.blocks if b.queue is queue and b.buffer.nbytes == size and b.is_free), None
        )
        if block is None:
            block = Block(torch.full((size,), 0xAB, dtype=torch.uint8), queue)
            self.blocks.append(block)
            self._by_address[block.buffer.data_ptr()] = block
        block.users, block.pending = set(), None
        made = torch.from_dlpack(block.buffer)  # a storage of its own, whose death is noticed
        finalize(made.untyped_storage(), block.release)
        return made.view(like.dtype).view(like.shape)

    def _move(self, to: int, origin: int, size: int) -> None:
        self.current().work.append(lambda: ctypes.memmove(to, origin, size) if size else None)


class PromptStreams(DelayingStreams):
    """Streams whose work runs at once."""

    def _move(self, to: int, origin: int, size: int) -> None:
        super()._move(to, origin, size)
        self.current().run()

    def wait(self, stream: Stream, event: Event) -> None:
        super().wait(stream, event)
        assert isinstance(stream, Queue)
        stream.run()
