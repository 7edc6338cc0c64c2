"""Recorders and streams of the device that tests run on: a GPU, or the CPU in its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from khop.loading.device.streams import CudaRecorder, CudaStreams, Event, Recorder, Stream, Streams
from support.triton_rows import DEVICE


def repeated(launches: Callable[[], None]) -> Callable[[], None]:
    """Run the launches once, as CudaRecorder does, and return them."""
    launches()
    return launches


class Passed:
    """An event that has passed, and the only stream."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


class NoStreams:
    """Streams of a device that does all work at once, in the order of its issue."""

    device = torch.device("cpu")

    def side(self) -> Stream:
        return Passed()

    background = side

    def current(self) -> Stream:
        return Passed()

    def selected(self) -> AbstractContextManager[object]:
        return nullcontext()

    @contextmanager
    def issuing(self, stream: Stream) -> Iterator[None]:
        yield

    def record(self, stream: Stream) -> Event:
        return Passed()

    def wait(self, stream: Stream, event: Event) -> None:
        pass

    def pinned(self, tensor: Tensor) -> Tensor:
        return tensor

    def copied(self, tensor: Tensor) -> Tensor:
        return tensor.clone()

    def used_on(self, tensor: Tensor, stream: Stream) -> None:
        pass

    def recorder(self, stream: Stream) -> Recorder:
        return repeated


@dataclass(eq=False)
class Timeline:
    """A stream whose recorded launches take time."""

    end: float = 0.0  # of the work that it has so far


@dataclass
class At:
    """An event at a time of the device."""

    streams: TimedStreams
    time: float

    def query(self) -> bool:
        return self.time <= self.streams.now

    def synchronize(self) -> None:
        self.streams.waits += not self.query()
        self.streams.now = max(self.streams.now, self.time)


class TimedStreams(NoStreams):
    """Streams that do all work at once, and compute when a device and the host would do it.

    Recorded launches take `of_batch` on the stream that makes batches, and `of_step` on the first one.
    """

    def __init__(self, of_batch: float, of_step: float) -> None:
        self.now = 0.0  # of the host; a test adds the time of its work
        self.waits = 0  # of the host, for work that was not done yet
        self.computed: list[tuple[float, float]] = []  # begin and end of each step
        self._of_batch, self._of_step = of_batch, of_step
        self._first = self._current = Timeline()

    def side(self) -> Stream:
        return Timeline()

    background = side

    def current(self) -> Stream:
        return self._current

    @contextmanager
    def issuing(self, stream: Stream) -> Iterator[None]:
        assert isinstance(stream, Timeline)
        before, self._current = self._current, stream
        try:
            yield
        finally:
            self._current = before

    def record(self, stream: Stream) -> Event:
        assert isinstance(stream, Timeline)
        return At(self, stream.end)

    def wait(self, stream: Stream, event: Event) -> None:
        assert isinstance(stream, Timeline)
        assert isinstance(event, At)
        stream.end = max(stream.end, event.time)

    def recorder(self, stream: Stream) -> Recorder:
        is_step = stream is self._first

        def record(launches: Callable[[], None]) -> Callable[[], None]:
            launches()

            def replay() -> None:
                launches()
                begin = max(self._current.end, self.now)
                self._current.end = begin + (self._of_step if is_step else self._of_batch)
                if is_step:
                    self.computed.append((begin, self._current.end))

            return replay

        return record


def recorder() -> Recorder:
    return CudaRecorder(torch.cuda.Stream()).record if DEVICE.type == "cuda" else repeated


def streams() -> Streams:
    return CudaStreams(DEVICE) if DEVICE.type == "cuda" else NoStreams()
