"""Messages of servers: a header of plain JSON, then the bytes of its tensors one after another.

A header has 4 bytes `khop`, the version (4 bytes), the length of the JSON (8 bytes), all little-endian, and
the JSON. The tensors follow in pieces of any size. The receiver allocates their memory once, by the sizes in
the header. Nothing is ever unpickled.

Plain JSON of messages, read field by field; an error names the field.

Numbers of edges in messages: the requests of in-degrees, and their checked answers.

Keys of draws in messages: with their epoch and step, which some rules read.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from khop.distributed.exchange.codec import check_below
from khop.draw import DrawKey
from khop.kernels.memory import free_memory_bytes, pooled
from khop.schema import EdgeType, NodeType
from khop.servers.access import Buffer
from khop.servers.errors import WrongVersion

Type = NodeType | EdgeType
Plain = object  # None, bool, int, float, str, and lists and objects of these
_MOST = (1 << 64) - 1


@dataclass(frozen=True)
class Document:
    """A value of a JSON document with its place in it. All readers raise ValueError if it is another."""

    value: object
    where: str

    @classmethod
    def parsed(cls, text: bytes, where: str) -> Document:
        """Read JSON; ValueError for anything else, and for numbers that are not finite."""
        try:
            return cls(json.loads(text, parse_constant=_refuse), where)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where}: is not JSON of khop ({error})") from None

    def __getitem__(self, name: str) -> Document:
        """Return a field of an object."""
        found = _fields(self.value)
        if found is None or name not in found:
            raise ValueError(f"{self.where}: has no field {name!r}")
        return Document(found[name], f"{self.where}.{name}")

    def given(self, name: str) -> Document | None:
        """Return a field of an object; None if it is missing or null."""
        value = (_fields(self.value) or {}).get(name)
        return None if value is None else Document(value, f"{self.where}.{name}")

    def each(self) -> list[Document]:
        """Return the entries of a list."""
        if not isinstance(self.value, list):
            _refuse_value(self, "a list")
        return [Document(entry, f"{self.where}[{number}]") for number, entry in enumerate(self.value)]

    def names(self) -> list[str]:
        """Return the names of the fields of an object."""
        found = _fields(self.value)
        if found is None:
            _refuse_value(self, "an object of names and values")
        return list(found)

    def text(self) -> str:
        """Return text."""
        if not isinstance(self.value, str):
            _refuse_value(self, "text")
        return self.value

    def whole(self, least: int = 0, most: int = _MOST) -> int:
        """Return a whole number within limits."""
        if type(self.value) is not int or not least <= self.value <= most:
            _refuse_value(self, f"a whole number from {least} to {most}")
        return self.value

    def real(self) -> float:
        """Return a number."""
        if type(self.value) not in (int, float):
            _refuse_value(self, "a number")
        return float(self.value)  # type: ignore[arg-type]

    def type_(self) -> Type:
        """Return a node type, or an edge type from a list of three."""
        if isinstance(self.value, str):
            return self.value
        match self.value:
            case [str(source), str(relation), str(destination)]:
                return source, relation, destination
        _refuse_value(self, "a node type, or an edge type as a list of three words")

    def entries(self) -> Iterator[tuple[Type, Document]]:
        """Yield the entries of a mapping by type, written as a list of pairs."""
        seen: set[Type] = set()
        for pair in self.each():
            match pair.each():
                case [key, value]:
                    type_ = key.type_()
                    if type_ in seen:
                        raise ValueError(f"{pair.where}: {type_!r} is given twice")
                    seen.add(type_)
                    yield type_, value
                case _:
                    _refuse_value(pair, "a pair of a type and a value")


def _fields(value: object) -> dict[str, object] | None:
    match value:
        case dict():
            return value
    return None


def _refuse_value(given: Document, wanted: str) -> NoReturn:
    text = repr(given.value)
    raise ValueError(f"{given.where}: is {text if len(text) <= 60 else text[:57] + '...'}, not {wanted}")


def written(value: Plain) -> bytes:
    """Return the JSON of plain values. Equal values have equal bytes."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def by_type(values: Mapping[NodeType, Plain] | Mapping[EdgeType, Plain] | Mapping[Type, Plain]) -> Plain:
    """Return a mapping by type as a list of pairs, in its order."""
    return [[list(t) if isinstance(t, tuple) else t, value] for t, value in values.items()]


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no finite number")


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


MOST_EDGES = 1 << 48


def checked_counts(frame: Frame, nodes: int) -> Tensor:
    """Return the counts of an answer, int64 (nodes); ValueError if they are no numbers of edges."""
    counts = frame.tensor(frame.document["counts"])
    if counts.dtype != torch.int64 or counts.shape != (nodes,):
        raise ValueError(f"counts: are {counts.dtype} {tuple(counts.shape)}, for {nodes} nodes")
    check_below(counts, MOST_EDGES, "number of edges")
    return counts


def written_nodes(nodes: Tensor, tensors: Tensors) -> Mapping[str, Plain]:
    """Return the fields of a request for some nodes, int64 (n): consecutive ones by their ends alone."""
    count = nodes.numel()
    if count and bool((nodes.diff() == 1).all()):
        return {"first": int(nodes[0]), "end": int(nodes[0]) + count}
    return {"nodes": tensors(nodes)}


def read_nodes(frame: Frame, most: int) -> Tensor:
    """Return the nodes of a request, int64 (n); ValueError for more than `most`."""
    given = frame.document
    number = given.given("nodes")
    if number is None:
        first = given["first"].whole(0, 1 << 62)
        count = given["end"].whole(first, 1 << 62) - first
        _check_count(given, count, most)
        return torch.arange(first, first + count)
    nodes = frame.tensor(number)
    if nodes.dtype != torch.int64 or nodes.dim() != 1:
        raise ValueError(f"{number.where}: is {nodes.dtype} {tuple(nodes.shape)}, must be int64 (n)")
    _check_count(given, nodes.numel(), most)
    return nodes


def check_numbers(numbers: Tensor, count: int, what: str) -> None:
    """Raise ValueError unless `numbers` are int64 (n), each of 0 to `count` - 1; `what` names them."""
    if numbers.dim() != 1 or str(numbers.dtype) != "torch.int64":
        raise ValueError(f"numbers of {what}s: are {numbers.dtype} {tuple(numbers.shape)}, must be int64 (n)")
    if numbers.numel() and not 0 <= int(numbers.min()) <= int(numbers.max()) < count:
        raise ValueError(f"{what}s {int(numbers.min())} to {int(numbers.max())}: there are {count}")


def _check_count(given: Document, count: int, most: int) -> None:
    if count > most:
        raise ValueError(f"{given.where}: {count:,} nodes are requested at once; ask for at most {most:,}")


def written_key(key: DrawKey) -> dict[str, Plain]:
    """Return the fields of a key."""
    return {"value": key.value, "of_epoch": key.of_epoch, "step": key.step}


def read_key(given: Document) -> DrawKey:
    """Read a key; ValueError names the field that is wrong."""
    of_epoch = given.given("of_epoch")
    step = given["step"].whole()
    return DrawKey(given["value"].whole(), None if of_epoch is None else of_epoch.whole(), step)
