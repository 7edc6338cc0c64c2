"""Transfer of a batch from host memory to the model's device on a separate stream."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import TypeVar
from weakref import finalize

import torch
from torch import Tensor

from khop.batch import HasTensors
from khop.loading.device.streams import Event, Streams, gpu_remedy, num_gpus

Value = TypeVar("Value", bound=HasTensors)


def device_of(given: object) -> torch.device:
    """Return the device; ValueError if torch does not know it or this machine does not have it."""
    try:
        device = torch.device(given)  # type: ignore[call-overload]
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f'device {given!r}: must be a torch device, such as "cpu", "cuda" or "cuda:1"'
        ) from error
    assert isinstance(device, torch.device)
    if device.type == "cuda":
        count = num_gpus()
        if count <= (device.index or 0):
            there = f"finds {count} CUDA devices" if count else "finds no CUDA device"
            raise ValueError(f'device {given!r}: torch {there}; give device="cpu", or {gpu_remedy()}')
    return device


@dataclass(frozen=True)
class Arrival:
    """Work of another stream that makes tensors on a device."""

    streams: Streams
    made: Event
    tensors: tuple[Tensor, ...]  # one of each storage

    def wait(self) -> None:
        """Let the current stream wait for the tensors, and use their memory. The host does not wait."""
        current = self.streams.current()
        self.streams.wait(current, self.made)
        for tensor in self.tensors:
            self.streams.used_on(tensor, current)


class Transfer:
    """Copies to a device on a separate stream. Several threads may send values.

    The host never waits. The consumer's stream waits for the event after the copies. Memory on the device is
    reused only after its last use there. Host memory stays until it is copied.
    """

    def __init__(self, streams: Streams) -> None:
        self.streams = streams
        self._stream = streams.side()
        self._lock = Lock()
        self._sources: deque[tuple[Event, list[Tensor]]] = (
            deque()
        )  # not copied yet, in the order of the stream
        finalize(self, _drain, streams, self._sources)

    def send(
        self, value: Value, finish: Callable[[Value], Value] = lambda value: value
    ) -> tuple[Value, Arrival]:
        """Issue the copies of all tensors of a value, then the work of `finish` on the value on the device.

        Views of one storage are copied together. Use the result after `Arrival.wait`.
        """
        pieces = _pieces(value)
        with self.streams.selected():
            sources = [self.streams.pinned(piece.source) for piece in pieces]
        with self._lock, self.streams.issuing(self._stream):
            copies = [self.streams.copied(source) for source in sources]
            found = {
                key: view(copy)
                for piece, copy in zip(pieces, copies, strict=True)
                for key, view in piece.views.items()
            }
            sent = finish(value.map(lambda tensor: found[_key(tensor)]))
            made = self.streams.record(self._stream)
            self._sources.append((made, sources))
            while self._sources and self._sources[0][0].query():
                self._sources.popleft()
        return sent, Arrival(self.streams, made, storages(sent))

    def after_copies(self, sent: Value, work: Callable[[Value], Value]) -> tuple[Value, Arrival]:
        """Issue more work on a value that was sent, behind its copies."""
        with self.streams.issuing(self._stream):
            made = work(sent)
            done = self.streams.record(self._stream)
        return made, Arrival(self.streams, done, storages(made))


def storages(value: HasTensors) -> tuple[Tensor, ...]:
    """Return one tensor of each storage of a value."""
    found: dict[int, Tensor] = {}

    def note(tensor: Tensor) -> Tensor:
        found.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    value.map(note)
    return tuple(found.values())


def place(batch: Value, device: torch.device) -> Value:
    """Copy a batch to a device without streams, on the calling thread."""
    return batch if device.type == "cpu" else batch.map(lambda tensor: tensor.to(device))


Key = tuple[int, torch.dtype, tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class _Piece:
    """Memory to copy as a whole, and the tensors within it."""

    source: Tensor
    views: dict[Key, Callable[[Tensor], Tensor]]  # from the copy of `source`


def _pieces(value: HasTensors) -> list[_Piece]:
    """Divide the tensors of a value: a storage that they fill for the most part is copied as a whole."""
    tensors: dict[Key, Tensor] = {}

    def note(tensor: Tensor) -> Tensor:
        tensors.setdefault(_key(tensor), tensor)
        return tensor

    value.map(note)
    by_storage: dict[int, dict[Key, Tensor]] = {}
    for key, tensor in tensors.items():
        by_storage.setdefault(tensor.untyped_storage().data_ptr(), {})[key] = tensor
    pieces: list[_Piece] = []
    for views in by_storage.values():
        storage = next(iter(views.values())).untyped_storage()
        if len(views) > 1 and 2 * sum(view.nbytes for view in views.values()) >= storage.nbytes():
            whole = torch.empty(0, dtype=torch.uint8).set_(storage)
            pieces.append(_Piece(whole, {key: _viewing(view) for key, view in views.items()}))
        else:
            pieces.extend(_Piece(view, {key: _same}) for key, view in views.items())
    return pieces


def _key(tensor: Tensor) -> Key:
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def _viewing(tensor: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a function that finds the tensor in a copy of its storage."""
    dtype, offset, shape, strides = tensor.dtype, tensor.storage_offset(), tensor.shape, tensor.stride()

    def view(copy: Tensor) -> Tensor:
        return torch.empty(0, dtype=dtype, device=copy.device).set_(
            copy.untyped_storage(), offset, shape, strides
        )

    return view


def _same(copy: Tensor) -> Tensor:
    return copy


def _drain(streams: Streams, sources: deque[tuple[Event, list[Tensor]]]) -> None:
    """Wait for the last copies before their host memory is freed."""
    with streams.selected():
        for copied, _ in sources:
            copied.synchronize()
    sources.clear()
