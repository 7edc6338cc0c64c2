"""Launches that are recorded once and repeated with one call: CUDA graphs of batches with static shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch


class Recording(Protocol):
    """Recorded launches."""

    def replay(self) -> None:
        """Start all launches in the current stream, with the values that their tensors have then."""
        ...


class Recorder(Protocol):
    """Implementers record launches."""

    def record(self, launches: Callable[[], None]) -> Recording:
        """Record launches of constant shapes. They may run once or more on the way."""
        ...


class CudaRecorder:
    """Recorder of CUDA graphs on a stream. Call it while no other thread uses the device."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream

    def record(self, launches: Callable[[], None]) -> Recording:
        """Run the launches once, which compiles kernels, and capture the second run."""
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            launches()
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream):
            launches()
        return graph
