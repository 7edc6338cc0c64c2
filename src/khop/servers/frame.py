"""Messages of servers: a header of plain JSON, then the bytes of its tensors one after another.

A header has 4 bytes `khop`, the version (4 bytes), the length of the JSON (8 bytes), all little-endian, and
the JSON. The tensors follow in pieces of any size. The receiver allocates their memory once, by the sizes in
the header. Nothing is ever unpickled.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from khop.kernels.memory import free_memory_bytes, pooled
from khop.servers.errors import WrongVersion
from khop.servers.json_fields import Document, Plain, written
from khop.servers.transport import Buffer

VERSION = 7
PIECE = 1 << 20  # bytes: larger pieces gain nothing, and one per tensor takes twice the time
LEAST_PIECE = 1 << 19  # smaller tensors are joined
MOST_HEADER = 8 << 20
MOST_TENSORS = 1 << 16
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
    )
}
_PREFIX = struct.Struct("<4sIQ")
MAGIC = b"khop"
_ALIGNED = 64  # bytes: the tensors of a message lie in one block, each where vector instructions like it
_MOST_BYTES = 1 << 46
_UNCHECKED = 1 << 26  # bytes: reading the free memory takes about as long as the copy of a smaller message
_MOST_DIMENSIONS = 16

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Frame:
    """A message that was received: its header, and its tensors, writable, in one block of memory."""

    document: Document
    tensors: tuple[Tensor, ...]
    num_bytes: int  # of the whole message

    def tensor(self, number: Document) -> Tensor:
        """Return the tensor that a field of the header refers to."""
        return self.tensors[number.whole(0, len(self.tensors) - 1)]


class Tensors:
    """The tensors of a message to send, each once, referred to by number."""

    def __init__(self) -> None:
        self.all: list[Tensor] = []
        self._numbers: dict[int, int] = {}  # by identity; `all` keeps the tensors alive

    def __call__(self, tensor: Tensor) -> int:
        """Add a tensor and return its number; a tensor that was added before keeps its number."""
        if id(tensor) not in self._numbers:
            self._numbers[id(tensor)] = len(self.all)
            self.all.append(tensor)
        return self._numbers[id(tensor)]

    def given(self, tensor: Tensor | None) -> int | None:
        """Add a tensor if there is one."""
        return None if tensor is None else self(tensor)


def header(fields: dict[str, Plain], tensors: Sequence[Tensor]) -> bytes:
    """Return the header of a message: the fields, and dtype and shape of each tensor."""
    shapes = [[str(tensor.dtype).removeprefix("torch."), list(tensor.shape)] for tensor in tensors]
    text = written({**fields, "tensors": shapes})
    if len(text) > MOST_HEADER:
        raise ValueError(f"header of a message: {len(text):,} bytes, of {MOST_HEADER:,} allowed")
    return _PREFIX.pack(MAGIC, VERSION, len(text)) + text


def pieces(tensors: Sequence[Tensor]) -> Iterator[memoryview]:
    """Yield the bytes of all tensors in pieces of 512 KiB to 1 MiB; only the last one may be smaller.

    Large tensors are sliced and not copied. Small ones are joined.
    """
    waiting: list[memoryview] = []
    size = 0
    for tensor in tensors:
        left = _bytes_of(tensor).data
        while left:
            if not size and len(left) >= LEAST_PIECE:
                yield left[:PIECE]
                left = left[PIECE:]
                continue
            part, left = left[: PIECE - size], left[PIECE - size :]
            waiting.append(part)
            size += len(part)
            if size == PIECE:
                yield _joined(waiting)
                waiting, size = [], 0
    if waiting:
        yield _joined(waiting)


def whole(fields: dict[str, Plain], tensors: Sequence[Tensor]) -> bytes:
    """Return a message in one piece."""
    return b"".join([header(fields, tensors), *pieces(tensors)])


def received(message: Iterable[Buffer], most_bytes: int, where: str) -> Frame:
    """Read a message whose first piece is the header; ValueError if it is not what its header says.

    WrongVersion if the sender speaks another version. No memory is allocated for more than `most_bytes`, nor
    for more than is free.
    """
    arriving = iter(message)
    first = next(arriving, b"")
    document = _document(first, where)
    specs = [_spec(each) for each in _specs(document)]
    sizes = [math.prod(shape) * dtype.itemsize for dtype, shape in specs]
    places, total = _layout(sizes)
    if total > most_bytes:
        raise ValueError(f"{where}: {total:,} bytes are announced, and at most {most_bytes:,} are allowed")
    if total > _UNCHECKED and total > (free := free_memory_bytes()):
        raise ValueError(
            f"{where}: {total:,} bytes are announced, and this machine has {free:,} bytes of free memory; "
            "take a smaller batch_size, fewer columns or a smaller prefetch"
        )
    block = pooled((total,), torch.uint8)
    found = _fill(block.numpy(), list(zip(places, sizes, strict=True)), arriving, where)
    tensors = tuple(
        _tensor(block[place : place + size], dtype, shape, where)
        for place, size, (dtype, shape) in zip(places, sizes, specs, strict=True)
    )
    return Frame(document, tensors, len(first) + found)


def parsed(message: Buffer, most_bytes: int, where: str) -> Frame:
    """Read a message in one piece. No memory is allocated for bytes that are not in it."""
    view = memoryview(message)
    length = _prefix(view, where)
    body = view[_PREFIX.size + length :]
    there = len(body) + _ALIGNED * MOST_TENSORS  # with the gaps between tensors
    return received([view[: _PREFIX.size + length], body], min(most_bytes, there), where)


def _prefix(view: memoryview, where: str) -> int:
    """Return the length of the JSON."""
    if len(view) < _PREFIX.size:
        raise ValueError(f"{where}: {len(view)} bytes are no message of khop")
    magic, version, length = _PREFIX.unpack(view[: _PREFIX.size])
    if magic != MAGIC:
        raise ValueError(f"{where}: is no message of khop")
    if version != VERSION:
        raise WrongVersion(
            f"{where}: is in version {version} of the messages, and this khop reads version {VERSION}; "
            "install the same khop on clients and servers"
        )
    if length > MOST_HEADER:
        raise ValueError(f"{where}: a header of {length:,} bytes, and at most {MOST_HEADER:,} are allowed")
    return int(length)


def _document(first: Buffer, where: str) -> Document:
    view = memoryview(first)
    length = _prefix(view, where)
    if len(view) != _PREFIX.size + length:
        raise ValueError(f"{where}: the header has {len(view) - _PREFIX.size} bytes, announced are {length}")
    return Document.parsed(bytes(view[_PREFIX.size :]), where)


def _specs(document: Document) -> list[Document]:
    specs = document["tensors"].each()
    if len(specs) > MOST_TENSORS:
        raise ValueError(f"{document.where}: {len(specs)} tensors, and at most {MOST_TENSORS} are allowed")
    return specs


def _spec(given: Document) -> tuple[torch.dtype, tuple[int, ...]]:
    match given.each():
        case [name, shape] if name.value in DTYPES and len(shape.each()) <= _MOST_DIMENSIONS:
            dtype, lengths = DTYPES[name.text()], tuple(n.whole(0, _MOST_BYTES) for n in shape.each())
            if math.prod(lengths) * dtype.itemsize <= _MOST_BYTES:
                return dtype, lengths
    raise ValueError(f"{given.where}: is {given.value!r:.80}, not a dtype and a shape")


def _layout(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Return the place of each tensor in the block, and the size of the block."""
    places, end = [], 0
    for size in sizes:
        places.append(end)
        end += -(-size // _ALIGNED) * _ALIGNED
    return places, end


def _fill(block: Bytes, rooms: list[tuple[int, int]], arriving: Iterator[Buffer], where: str) -> int:
    """Copy the pieces into the rooms (place, size) of the tensors; return the number of bytes."""
    left = [(place, place + size) for place, size in reversed(rooms) if size]
    found = 0
    for piece in arriving:
        source = np.frombuffer(piece, np.uint8)
        found += source.size
        while source.size:
            if not left:
                raise ValueError(f"{where}: more bytes came than its header announces")
            begin, end = left.pop()
            taken = min(source.size, end - begin)
            block[begin : begin + taken] = source[:taken]  # NumPy copies without the interpreter's lock
            source = source[taken:]
            if begin + taken < end:
                left.append((begin + taken, end))
    if left:
        missing = sum(end - begin for begin, end in left)
        raise ValueError(f"{where}: {missing:,} bytes of what its header announces did not come")
    return found


def _tensor(content: Tensor, dtype: torch.dtype, shape: tuple[int, ...], where: str) -> Tensor:
    if dtype is torch.bool and content.numel() and int(content.max()) > 1:
        raise ValueError(f"{where}: a boolean is a byte of 0 or 1, and {int(content.max())} is another")
    return content.view(dtype).view(shape)


def _bytes_of(tensor: Tensor) -> Bytes:
    flat: Bytes = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()
    return flat


def _joined(parts: list[memoryview]) -> memoryview:
    return memoryview(b"".join(parts))
