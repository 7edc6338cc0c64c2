"""Recorders and streams of the device that tests run on: a GPU, or the CPU in its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

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


def recorder() -> Recorder:
    return CudaRecorder(torch.cuda.Stream()).record if DEVICE.type == "cuda" else repeated


def streams() -> Streams:
    return CudaStreams(DEVICE) if DEVICE.type == "cuda" else NoStreams()
