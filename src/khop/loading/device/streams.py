"""CUDA streams, events, pinned memory and CUDA graphs for batches on their way to a GPU.

`Streams` is the only interface for streams of batches. tests/support/delaying_streams.py implements it
without a GPU, and delays all work as long as the interface allows. Other modules call torch.cuda only for
memory, CUDA graphs, and properties of the current GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from khop.kernels.memory import PinningCalls, pin_pooled

# Starts the recorded launches in the current stream, with the values that their tensors have then.
Replay = Callable[[], object]
# Records launches of constant shapes, which may run once or more on the way.
Recorder = Callable[[Callable[[], None]], Replay]
Stream: TypeAlias = object  # a queue of work of a device, in order


class CudaRecorder:
    """Recorder of CUDA graphs on a stream. Call it while no other thread waits for a device.

    The graphs share one memory pool: replay them in one stream, and read nothing that they allocate.
    """

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: list[torch.cuda.CUDAGraph] = []

    def record(self, launches: Callable[[], None]) -> Replay:
        """Run the launches once, which compiles kernels, again with waits as errors, and capture a third run.

        RuntimeError if the launches wait for the device, or if the capture fails. This recorder then has no
        graphs, and torch's current stream, its allocator and its generator are as before.
        """
        stream = self._stream
        stream.wait_stream(torch.cuda.current_stream(stream.device))
        generator = torch.cuda.default_generators[stream.device_index]
        state = generator.clone_state()
        graph = torch.cuda.CUDAGraph()
        self._graphs.append(graph)
        is_recorded = False
        try:
            with torch.cuda.stream(stream):  # torch.cuda.graph does not restore the stream after an error
                launches()
                with _waits_refused():
                    launches()
                stream.synchronize()
                # Threads of loaders and of NCCL may use the device meanwhile: their calls do not count.
                with torch.cuda.graph(graph, self._pool, stream, capture_error_mode="thread_local"):
                    launches()
            is_recorded = True
        finally:
            if not is_recorded:
                self._release()
                generator.graphsafe_set_state(state)  # a failed capture would leave it in use by the graph
        return graph.replay

    def _release(self) -> None:
        """Return the memory of all graphs, also of one whose capture has failed."""
        for graph in self._graphs:
            graph.reset()
        self._graphs.clear()
        device = self._stream.device_index
        with suppress(RuntimeError):  # torch before 2.13 still allocates from the pool if the capture failed
            _end_allocations()(device, self._pool)
        torch.cuda.empty_cache()
        if any(segment["segment_pool_id"] == self._pool for segment in torch.cuda.memory_snapshot()):
            torch._C._cuda_releasePool(device, self._pool)  # torch keeps the pool of a failed capture
            torch.cuda.empty_cache()


@contextmanager
def _waits_refused() -> Iterator[None]:
    """Make calls that wait for a device raise RuntimeError, in all threads."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def _end_allocations() -> Callable[[int, object], None]:
    """Return torch's function that ends allocations from a pool; torch 2.8 has renamed it."""
    named = "_cuda_endAllocateToPool"
    found: Callable[[int, object], None] = getattr(
        torch._C, named if hasattr(torch._C, named) else "_cuda_endAllocateCurrentStreamToPool"
    )
    return found


Symbol = Callable[[str], int | None]  # name of a function -> its address


class Event(Protocol):
    """A point in a stream."""

    def query(self) -> bool:
        """Return True if the device has passed the point, without waiting."""
        ...

    def synchronize(self) -> None:
        """Wait on the host until the device has passed the point."""
        ...


class Streams(Protocol):
    """Streams of one device."""

    @property
    def device(self) -> torch.device:
        """The device."""
        ...

    def side(self) -> Stream:
        """Return another stream, whose work runs concurrently with that of all others."""
        ...

    def background(self) -> Stream:
        """Return a new stream of low priority."""
        ...

    def current(self) -> Stream:
        """Return the stream that the calling thread issues work to."""
        ...

    def selected(self) -> AbstractContextManager[object]:
        """Make the device the current one of this thread while the block runs.

        A new thread has the first device, and its calls take memory there.
        """
        ...

    def issuing(self, stream: Stream) -> AbstractContextManager[object]:
        """Make a stream and its device the current ones of this thread while the block runs."""
        ...

    def record(self, stream: Stream) -> Event:
        """Return the event after the work that the stream has so far."""
        ...

    def wait(self, stream: Stream, event: Event) -> None:
        """Let later work of a stream begin after an event. The host does not wait."""
        ...

    def pinned(self, tensor: Tensor) -> Tensor:
        """Return the tensor in memory that the device copies from without a wait of the host."""
        ...

    def copied(self, tensor: Tensor) -> Tensor:
        """Return a copy on the device, issued to the current stream. The tensor must live until then."""
        ...

    def used_on(self, tensor: Tensor, stream: Stream) -> None:
        """Keep the tensor's memory from other use until the work that a stream has when it dies is done."""
        ...

    def recorder(self, stream: Stream) -> Recorder:
        """Return a recorder of launches that have the priority of a stream."""
        ...


class CudaStreams:
    """Streams of a GPU of CUDA or ROCm, by torch's names for both.

    Memory of batches comes from torch's allocator. It reuses memory after the last storage has died and every
    stream that used it has passed that point. It never waits: if none is free, it allocates.
    """

    def __init__(self, device: torch.device) -> None:
        index = torch.cuda.current_device() if device.index is None else device.index
        self.device = torch.device(device.type, index)
        _pin_pool_once(index)

    def side(self) -> torch.cuda.Stream:
        """Return another stream; see Streams.

        Its small kernels go first. Else they would wait for places between the large ones of a training step.
        """
        return torch.cuda.Stream(self.device, priority=-1)

    def background(self) -> torch.cuda.Stream:
        """Return a new stream of low priority; see Streams."""
        return torch.cuda.Stream(self.device, priority=0)

    def current(self) -> torch.cuda.Stream:
        """Return the stream that the calling thread issues work to."""
        return torch.cuda.current_stream(self.device)

    def selected(self) -> AbstractContextManager[object]:
        """Make the device the current one of this thread while the block runs; see Streams."""
        return torch.cuda.device(self.device)

    def issuing(self, stream: Stream) -> AbstractContextManager[object]:
        """Make a stream and its device the current ones of this thread while the block runs."""
        return torch.cuda.stream(_cuda(stream))

    def record(self, stream: Stream) -> torch.cuda.Event:
        """Return the event after the work that the stream has so far."""
        event = torch.cuda.Event()
        event.record(_cuda(stream))
        return event

    def wait(self, stream: Stream, event: Event) -> None:
        """Let later work of a stream begin after an event."""
        assert isinstance(event, torch.cuda.Event)
        _cuda(stream).wait_event(event)

    def pinned(self, tensor: Tensor) -> Tensor:
        """Return the tensor itself if it is pinned, as blocks of khop's pool are, else a pinned copy."""
        return tensor if tensor.numel() == 0 or tensor.is_pinned() else tensor.pin_memory()

    def copied(self, tensor: Tensor) -> Tensor:
        """Return a copy on the device, issued to the current stream."""
        return tensor.to(self.device, non_blocking=True)

    def used_on(self, tensor: Tensor, stream: Stream) -> None:
        """Keep the tensor's memory until the work is done that a stream has when the tensor is freed."""
        tensor.record_stream(_cuda(stream))

    def recorder(self, stream: Stream) -> Recorder:
        """Return a recorder of CUDA graphs on a separate stream with the priority of this one."""
        own = torch.cuda.Stream(self.device, priority=_cuda(stream).priority)
        return CudaRecorder(own).record


def num_gpus() -> int:
    """Return the number of GPUs that torch can use in this process."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def gpu_remedy() -> str:
    """Return how to make torch use a GPU, with the reason why it does not."""
    if torch.version.cuda is None and torch.version.hip is None:
        return "install torch with CUDA; this build is for CPUs only"
    if count := num_gpus():
        return (
            f"one of the {count} GPUs of this machine, cuda:0 to cuda:{count - 1}" if count > 1 else "cuda:0"
        )
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().partition(". ")[0].partition("\n")[0]
        return f"install or update the driver: torch says {reason!r}"
    return "check the driver by `nvidia-smi`, and the variable CUDA_VISIBLE_DEVICES"


def streams_of(device: torch.device) -> Streams | None:
    """Return the streams of a device; None for a device whose copies need none."""
    return CudaStreams(device) if device.type == "cuda" else None


@cache
def _pin_pool_once(device: int) -> bool:
    return pin_pool(device)


def pin_pool(device: int, symbol: Symbol | None = None) -> bool:
    """Pin the pool of results that are copied, once per block; False if the runtime's calls are not found.

    Copies then go through memory that torch pins, which costs a copy on the host.
    """
    calls = runtime_calls(device, symbol)
    if calls is not None:
        pin_pooled(calls)
    return calls is not None


def runtime_calls(device: int, symbol: Symbol | None = None) -> PinningCalls | None:
    """Return the addresses of the runtime's functions that pin memory; None if they are not found."""
    runtime = "cuda" if torch.version.hip is None else "hip"
    names = ("SetDevice", "HostRegister", "HostUnregister", "GetLastError")
    select, pin, unpin, last_error = ((symbol or _address)(runtime + name) for name in names)
    if not (select and pin and unpin and last_error):
        return None
    return PinningCalls(select, pin, unpin, last_error, device)


def _address(name: str) -> int | None:
    """Return the address of a function of the runtime that torch has loaded; None if there is none."""
    for library in (None, *_runtimes()):
        with suppress(OSError, AttributeError):
            return ctypes.cast(getattr(ctypes.CDLL(library), name), ctypes.c_void_p).value
    return None


def _runtimes() -> list[str]:
    """Return the paths of loaded libraries of the runtime."""
    with suppress(OSError):
        lines = Path("/proc/self/maps").read_text().splitlines()
        paths = {line.split(maxsplit=5)[-1] for line in lines if "libcudart" in line or "libamdhip64" in line}
        return sorted(paths)
    return []


def _cuda(stream: Stream) -> torch.cuda.Stream:
    assert isinstance(stream, torch.cuda.Stream)
    return stream
