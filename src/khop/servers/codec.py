"""Codec for all server messages: dataclasses with tensors as bytes; every field is checked.

A message is a header and the bytes of its tensors. The header has 4 bytes `khop`, the version (4 bytes), the
length of the JSON (8 bytes), all little-endian, and the JSON: fields, and dtype and shape of each tensor. The
tensors follow in pieces of any size. The receiver allocates their memory once, by the sizes in the header.
The JSON of a dataclass follows from the annotations of its fields. Nothing is ever unpickled.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import StrEnum
from functools import cached_property
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NoReturn,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from khop.kernels.memory import free_memory_bytes, pooled
from khop.schema import EdgeType, Type
from khop.servers.access import Buffer
from khop.servers.errors import WrongVersion

VERSION = 10
PIECE = 1 << 20  # bytes: larger pieces are not faster, and one piece per tensor takes twice the time
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
MAGIC = b"khop"
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_PREFIX = struct.Struct("<4sIQ")
_ALIGNED = 64  # bytes: the tensors of a message share one block, aligned for vector instructions
_MOST_BYTES = 1 << 46
_UNCHECKED = 1 << 26  # bytes: for smaller messages, reading the free memory takes as long as a copy
_MOST_DIMENSIONS = 16

Plain = object  # None, bool, int, float, str, and lists and objects of these
Bytes = npt.NDArray[np.uint8]
Message = TypeVar("Message")


class Misfit(ValueError):
    """A part of a message that does not match its declaration. The text begins with the part's path."""

    def __init__(self, problem: str, place: str = "") -> None:
        super().__init__(f"{place}: {problem}" if place else problem)
        self.problem, self.place = problem, place

    def within(self, step: str) -> Misfit:
        """Return the error with the path of the enclosing value in front."""
        return Misfit(self.problem, step + self.place)


@dataclass(frozen=True)
class Array:
    """Dtype and number of dimensions of a tensor, such as `Annotated[Tensor, Array(torch.int64)]`."""

    dtype: torch.dtype
    dimensions: int = 1


@dataclass(frozen=True)
class Range:
    """Inclusive limits of an integer in a message."""

    least: int = 0
    most: int = (1 << 62) - 1


INT64 = Range(-(1 << 63), (1 << 63) - 1)
UINT64 = Range(0, (1 << 64) - 1)
Ids = Annotated[Tensor, Array(torch.int64)]  # int64 (n)
Ends = Annotated[Tensor, Array(torch.int64, 2)]
Octets = Annotated[Tensor, Array(torch.uint8)]
Count = Annotated[int, Range()]
Word = Annotated[int, UINT64]


class Tensors:
    """Tensors of an outgoing message, without duplicates, referred to by number."""

    def __init__(self) -> None:
        self.all: list[Tensor] = []
        self._numbers: dict[int, int] = {}  # by identity; `all` keeps the tensors alive

    def __call__(self, tensor: Tensor) -> int:
        """Add a tensor and return its number; a tensor that was added before keeps its number."""
        number = self._numbers.setdefault(id(tensor), len(self.all))
        if number == len(self.all):
            self.all.append(tensor)
        return number


class Form(NamedTuple):
    """Conversion of the values of one annotation to plain JSON and back."""

    write: Callable[[Any, Tensors], Plain]
    read: Callable[[Any, Sequence[Tensor]], Any]  # Misfit for anything else


class Codec:
    """Conversion of dataclasses to plain JSON and tensors, and back.

    Args:
        declared: Annotations that narrow those of dataclasses of other modules, by class and field; None
            leaves a field out, which then has its default.
    """

    def __init__(self, declared: Mapping[type, Mapping[str, object]]) -> None:
        self._declared = declared
        self._forms: dict[object, Form] = {}

    def write(self, value: object, tensors: Tensors) -> Plain:
        """Return a dataclass as plain values, and add its tensors."""
        return self._form(type(value)).write(value, tensors)

    def read(self, kind: type[Message], given: Plain, tensors: Sequence[Tensor], where: str) -> Message:
        """Return the dataclass that plain values describe; ValueError names the field that does not fit."""
        try:
            return cast("Message", self._form(kind).read(given, tensors))
        except Misfit as error:
            raise error.within(where) from None

    def _form(self, annotation: Any) -> Form:  # noqa: ANN401
        if annotation not in self._forms:
            self._forms[annotation] = self._made(annotation)
        return self._forms[annotation]

    def _made(self, annotation: Any) -> Form:  # noqa: ANN401
        origin, arguments = get_origin(annotation), get_args(annotation)
        if annotation in _SIMPLE:
            return _SIMPLE[annotation]
        if annotation in (Type, EdgeType):
            return _type_form(of_edges=annotation == EdgeType)
        if origin is Annotated:
            return _array_form(arguments[1]) if arguments[0] is Tensor else _whole_form(arguments[1])
        if origin in (Union, UnionType):
            return self._union(arguments)
        if origin is Literal:
            return _word_form(arguments)
        if origin is tuple or origin is frozenset:
            return _list_form(self._form(arguments[0]), origin)
        if origin is not None and issubclass(origin, Mapping):
            return _mapping_form(*map(self._form, arguments))
        if isinstance(annotation, type) and issubclass(annotation, StrEnum):
            return _enum_form(annotation)
        assert is_dataclass(annotation), f"{annotation} has no form in messages"
        return self._of_class(cast("type", annotation))

    def _union(self, arguments: Sequence[Any]) -> Form:
        kinds = [kind for kind in arguments if kind is not NoneType]
        form = self._form(kinds[0]) if len(kinds) == 1 else self._tagged(kinds)
        return _optional_form(form) if NoneType in arguments else form

    def _tagged(self, kinds: Sequence[type]) -> Form:
        """Return the form of a union of dataclasses: a pair of the name and the fields."""
        if set(kinds) == {int, float}:
            return Form(_same, _read_number)
        forms = {kind.__name__: self._form(kind) for kind in kinds}

        def write(value: object, tensors: Tensors) -> Plain:
            name = type(value).__name__
            return [name, forms[name].write(value, tensors)]

        def read(given: object, tensors: Sequence[Tensor]) -> object:
            match given:
                case [str(name), value] if name in forms:
                    try:
                        return forms[name].read(value, tensors)
                    except Misfit as error:
                        raise error.within(f".{name}") from None
            _refuse(given, f"one of {', '.join(forms)} with its fields")

        return Form(write, read)

    def _of_class(self, kind: type) -> Form:
        declared = self._declared.get(kind, {})
        hints = {**get_type_hints(kind, include_extras=True), **declared}
        sent = [field for field in fields(kind) if field.init and hints[field.name] is not None]
        assert all(
            hints[field.name] is not None
            or field.default is not MISSING
            or field.default_factory is not MISSING
            for field in fields(kind)
        )
        forms = [(field.name, self._form(hints[field.name])) for field in sent]
        writers, readers = [(n, f.write) for n, f in forms], [(n, f.read) for n, f in forms]
        names = frozenset(name for name, _ in forms)

        def write(value: object, tensors: Tensors) -> Plain:
            return {name: of_field(getattr(value, name), tensors) for name, of_field in writers}

        def read(given: object, tensors: Sequence[Tensor]) -> object:
            if type(given) is not dict or given.keys() != names:
                _refuse_fields(given, names)
            name, found = "", {}
            try:
                for name, of_field in readers:
                    found[name] = of_field(given[name], tensors)
            except Misfit as error:
                raise error.within(f".{name}") from None
            try:
                return kind(**found)
            except ValueError as error:
                raise Misfit(str(error)) from error

        return Form(write, read)


def _same(value: object, tensors: Tensors) -> Plain:
    return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _refuse(given: object, wanted: str) -> NoReturn:
    raise Misfit(f"is {_shown(given)}, not {wanted}")


def _refuse_fields(given: object, names: frozenset[str]) -> NoReturn:
    if not isinstance(given, dict):
        _refuse(given, "an object of names and values")
    for name in sorted(names - given.keys()):
        raise Misfit(f"has no field {name!r}")
    raise Misfit(f"has an unknown field {min(given.keys() - names)!r}")


def _read_text(given: object, tensors: Sequence[Tensor]) -> str:
    if type(given) is not str:
        _refuse(given, "text")
    return given


def _read_truth(given: object, tensors: Sequence[Tensor]) -> bool:
    if type(given) is not bool:
        _refuse(given, "true or false")
    return given


def _read_real(given: object, tensors: Sequence[Tensor]) -> float:
    if type(given) is not float and type(given) is not int:
        _refuse(given, "a number")
    try:
        return float(given)
    except OverflowError:
        _refuse(given, "a number of 64 bits")


def _read_number(given: object, tensors: Sequence[Tensor]) -> int | float:
    if type(given) is not float and type(given) is not int:
        _refuse(given, "a number")
    return given


def _whole_form(limits: Range) -> Form:
    least, most = limits.least, limits.most

    def read(given: object, tensors: Sequence[Tensor]) -> int:
        if type(given) is not int or not least <= given <= most:
            _refuse(given, f"a whole number from {least} to {most}")
        return given

    return Form(_same, read)


def _array_form(array: Array | None) -> Form:
    def write(value: Tensor, tensors: Tensors) -> Plain:
        return tensors(value)

    def read(given: object, tensors: Sequence[Tensor]) -> Tensor:
        if type(given) is not int or not 0 <= given < len(tensors):
            _refuse(given, f"the number of a tensor, of which there are {len(tensors)}")
        found = tensors[given]
        if array is not None and (found.dtype != array.dtype or found.dim() != array.dimensions):
            shape = ", ".join("nmkl"[: array.dimensions])
            raise Misfit(f"is {found.dtype} {tuple(found.shape)}, must be {array.dtype} ({shape})")
        return found

    return Form(write, read)


def _type_form(*, of_edges: bool) -> Form:
    def write(value: Type, tensors: Tensors) -> Plain:
        return list(value) if isinstance(value, tuple) else value

    def read(given: object, tensors: Sequence[Tensor]) -> Type:
        if type(given) is str and not of_edges:
            return given
        match given:
            case [str(source), str(relation), str(destination)]:
                return source, relation, destination
        if of_edges:
            raise Misfit(f"{_shown(given)} is not an edge type, a list of three words")
        _refuse(given, "a node type, or an edge type as a list of three words")

    return Form(write, read)


def _word_form(words: Sequence[str]) -> Form:
    def read(given: object, tensors: Sequence[Tensor]) -> str:
        for word in words:
            if given == word:
                return word
        raise Misfit(f"is {_shown(given)}, and must be one of {', '.join(words)}")

    return Form(_same, read)


def _enum_form(kind: type[StrEnum]) -> Form:
    words = _word_form([member.value for member in kind])
    return Form(lambda value, tensors: value.value, lambda given, tensors: kind(words.read(given, tensors)))


def _optional_form(form: Form) -> Form:
    of_value, to_value = form

    def write(value: object, tensors: Tensors) -> Plain:
        return None if value is None else of_value(value, tensors)

    def read(given: object, tensors: Sequence[Tensor]) -> object:
        return None if given is None else to_value(given, tensors)

    return Form(write, read)


def _list_form(form: Form, kind: type) -> Form:
    of_entry, to_entry = form

    def write(value: Iterable[object], tensors: Tensors) -> Plain:
        if kind is frozenset:
            value = sorted(value)  # type: ignore[type-var]
        return [of_entry(entry, tensors) for entry in value]

    def read(given: object, tensors: Sequence[Tensor]) -> object:
        if type(given) is not list:
            _refuse(given, "a list")
        found: list[object] = []
        try:
            for entry in given:
                found.append(to_entry(entry, tensors))
        except Misfit as error:
            raise error.within(f"[{len(found)}]") from None
        return kind(found)

    return Form(write, read)


def _mapping_form(key: Form, value: Form) -> Form:
    """Return the form of a mapping: a list of pairs, in the mapping's order."""
    (of_key, to_key), (of_value, to_value) = key, value

    def write(values: Mapping[object, object], tensors: Tensors) -> Plain:
        return [[of_key(each, tensors), of_value(of, tensors)] for each, of in values.items()]

    def read(given: object, tensors: Sequence[Tensor]) -> dict[object, object]:
        if type(given) is not list:
            _refuse(given, "a list of pairs")
        found: dict[object, object] = {}
        done = 0
        try:
            for pair in given:
                if type(pair) is not list or len(pair) != 2:
                    _refuse(pair, "a pair of a name and a value")
                each = to_key(pair[0], tensors)
                if each in found:
                    raise Misfit(f"{each!r} is given twice")
                found[each] = to_value(pair[1], tensors)
                done += 1
        except Misfit as error:
            raise error.within(f"[{done}]") from None
        return found

    return Form(write, read)


_SIMPLE: Mapping[object, Form] = {
    str: Form(_same, _read_text),
    bool: Form(_same, _read_truth),
    int: _whole_form(INT64),
    float: Form(_same, _read_real),
    Tensor: _array_form(None),
    object: Form(_same, lambda given, tensors: given),
}


def parsed_json(text: bytes, where: str) -> Plain:
    """Read JSON; ValueError for anything else, and for numbers that are not finite."""
    try:
        return cast("Plain", json.loads(text, parse_constant=_refuse_number))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: is not JSON of khop ({error})") from None


def parsed_description(text: bytes) -> Mapping[str, Plain]:
    """Read the description of a server; WrongVersion if it is not one of khop."""
    try:
        given = parsed_json(text, "server")
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise WrongVersion(
            "the server does not describe a graph; check that it is `khop serve` of the same version"
        )
    return given


def _refuse_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a finite number")


def json_of(value: Plain) -> bytes:
    """Return the JSON of plain values. Equal values have equal bytes."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


@dataclass(frozen=True)
class Frame:
    """A received message: the header, and writable tensors in one block of memory."""

    fields: Mapping[str, Plain]
    tensors: tuple[Tensor, ...]
    num_bytes: int  # of the whole message
    where: str

    def text(self, name: str) -> str:
        """Return a text field."""
        return str(self._field(name, str))

    def whole(self, name: str) -> int:
        """Return a field with an integer of 0 or more."""
        value = self._field(name, int)
        if value < 0:
            raise ValueError(f"{self.where}.{name}: is {value}, not a whole number from 0")
        return int(value)

    def body(self, codec: Codec, kind: type[Message]) -> Message:
        """Return the dataclass of the message."""
        return codec.read(kind, self._field("body", dict), self.tensors, f"{self.where}.body")

    def _field(self, name: str, kind: type) -> Any:  # noqa: ANN401
        if name not in self.fields:
            raise ValueError(f"{self.where}: has no field {name!r}")
        if type(self.fields[name]) is not kind:
            raise ValueError(f"{self.where}.{name}: is {_shown(self.fields[name])}, not of {kind.__name__}")
        return self.fields[name]


@dataclass(frozen=True)
class Outgoing:
    """An outgoing message: fields, and a dataclass as the body."""

    codec: Codec
    body: object
    fields: Mapping[str, Plain]

    @cached_property
    def _written(self) -> tuple[bytes, list[Tensor]]:
        tensors = Tensors()
        body = self.codec.write(self.body, tensors)
        return header({**self.fields, "body": body}, tensors.all), tensors.all

    @property
    def header(self) -> bytes:
        """The header of the message."""
        return self._written[0]

    def pieces(self) -> Iterator[memoryview]:
        """Yield the bytes of the tensors; see `pieces`."""
        return pieces(self._written[1])

    def whole(self) -> bytes:
        """Return the message in one piece."""
        return b"".join([self.header, *self.pieces()])


def header(fields: Mapping[str, Plain], tensors: Sequence[Tensor]) -> bytes:
    """Return the header of a message: the fields, and dtype and shape of each tensor."""
    shapes = [[_NAMES[tensor.dtype], list(tensor.shape)] for tensor in tensors]
    text = json_of({**fields, "tensors": shapes})
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
                yield memoryview(b"".join(waiting))
                waiting, size = [], 0
    if waiting:
        yield memoryview(b"".join(waiting))


def received(message: Iterable[Buffer], most_bytes: int, where: str) -> Frame:
    """Read a message whose first piece is the header; ValueError if it is not what its header says.

    WrongVersion if the sender uses another version. A message of more than `most_bytes`, or of more bytes
    than are free, is refused before memory is allocated.
    """
    arriving = iter(message)
    first = next(arriving, b"")
    fields = _fields_of(first, where)
    specs = _specs(fields, where)
    sizes = [math.prod(shape) * dtype.itemsize for dtype, shape in specs]
    places, total = _layout(sizes)
    if total > most_bytes:
        raise ValueError(f"{where}: {total:,} bytes are announced, but at most {most_bytes:,} are allowed")
    if total > _UNCHECKED and total > (free := free_memory_bytes()):
        raise ValueError(
            f"{where}: {total:,} bytes are announced, but this machine has {free:,} bytes of free memory; "
            "use a smaller batch_size, fewer columns or a smaller prefetch"
        )
    block = pooled((total,), torch.uint8)
    found = _fill(block.numpy(), list(zip(places, sizes, strict=True)), arriving, where)
    tensors = tuple(
        _tensor(block[place : place + size], dtype, shape, where)
        for place, size, (dtype, shape) in zip(places, sizes, specs, strict=True)
    )
    return Frame(fields, tensors, len(first) + found, where)


def parsed(message: Buffer, most_bytes: int, where: str) -> Frame:
    """Read a message in one piece. Memory is allocated only for bytes that it contains."""
    view = memoryview(message)
    length = _prefix(view, where)
    body = view[_PREFIX.size + length :]
    there = len(body) + _ALIGNED * MOST_TENSORS  # with the gaps between tensors
    return received([view[: _PREFIX.size + length], body], min(most_bytes, there), where)


def _prefix(view: memoryview, where: str) -> int:
    """Return the length of the JSON."""
    if len(view) < _PREFIX.size:
        raise ValueError(f"{where}: {len(view)} bytes are not a khop message")
    magic, version, length = _PREFIX.unpack(view[: _PREFIX.size])
    if magic != MAGIC:
        raise ValueError(f"{where}: is not a khop message")
    if version != VERSION:
        raise WrongVersion(
            f"{where}: has message version {version}, but this khop reads version {VERSION}; "
            "install the same khop on clients and servers"
        )
    if length > MOST_HEADER:
        raise ValueError(
            f"{where}: has a header of {length:,} bytes, but at most {MOST_HEADER:,} are allowed"
        )
    return int(length)


def _fields_of(first: Buffer, where: str) -> dict[str, Plain]:
    view = memoryview(first)
    length = _prefix(view, where)
    if len(view) != _PREFIX.size + length:
        raise ValueError(
            f"{where}: the header has {len(view) - _PREFIX.size} bytes, but {length} are announced"
        )
    found = parsed_json(bytes(view[_PREFIX.size :]), where)
    if not isinstance(found, dict) or not isinstance(found.get("tensors"), list):
        raise ValueError(f"{where}: has no field 'tensors'")
    return found


def _specs(fields: Mapping[str, Any], where: str) -> list[tuple[torch.dtype, tuple[int, ...]]]:
    given = fields["tensors"]
    if len(given) > MOST_TENSORS:
        raise ValueError(f"{where}: has {len(given)} tensors, but at most {MOST_TENSORS} are allowed")
    found = []
    for number, spec in enumerate(given):
        match spec:
            case [str(name), list(shape)] if (
                name in DTYPES
                and len(shape) <= _MOST_DIMENSIONS
                and all(type(n) is int and 0 <= n <= _MOST_BYTES for n in shape)
                and math.prod(shape) * DTYPES[name].itemsize <= _MOST_BYTES
            ):
                found.append((DTYPES[name], tuple(shape)))
            case _:
                raise ValueError(f"{where}.tensors[{number}]: is {spec!r:.80}, not a dtype and a shape")
    return found


def _layout(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Return the offset of each tensor in the block, and the size of the block."""
    places, end = [], 0
    for size in sizes:
        places.append(end)
        end += -(-size // _ALIGNED) * _ALIGNED
    return places, end


def _fill(block: Bytes, rooms: list[tuple[int, int]], arriving: Iterator[Buffer], where: str) -> int:
    """Copy the pieces into the slots (offset, size) of the tensors; return the number of bytes."""
    left = [(place, place + size) for place, size in reversed(rooms) if size]
    found = 0
    for piece in arriving:
        source = np.frombuffer(piece, np.uint8)
        found += source.size
        while source.size:
            if not left:
                raise ValueError(f"{where}: has more bytes than its header announces")
            begin, end = left.pop()
            taken = min(source.size, end - begin)
            block[begin : begin + taken] = source[:taken]  # NumPy copies without the interpreter's lock
            source = source[taken:]
            if begin + taken < end:
                left.append((begin + taken, end))
    if left:
        missing = sum(end - begin for begin, end in left)
        raise ValueError(f"{where}: is truncated: {missing:,} bytes that its header announces are missing")
    return found


def _tensor(content: Tensor, dtype: torch.dtype, shape: tuple[int, ...], where: str) -> Tensor:
    if dtype is torch.bool and content.numel() and int(content.max()) > 1:
        raise ValueError(f"{where}: a boolean is a byte of 0 or 1, and {int(content.max())} is another")
    return content.view(dtype).view(shape)


def _bytes_of(tensor: Tensor) -> Bytes:
    flat: Bytes = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()
    return flat
