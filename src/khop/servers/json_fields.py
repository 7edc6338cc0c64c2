"""Plain JSON of messages, read field by field; an error names the field."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn

from khop.schema import EdgeType, NodeType

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
