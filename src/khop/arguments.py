"""Checks of single arguments at the point of entry.

Each raises ValueError with the value, the reason and the remedy.

Internal: its names may change in any version. The public ones are in `khop.__all__`.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from operator import index
from pathlib import Path
from typing import Any, NoReturn, TypeVar, get_args

Choice = TypeVar("Choice", bound=Enum)
Given = TypeVar("Given")
Number = TypeVar("Number", int, float, bool)
LARGEST_INT64 = (1 << 63) - 1
LARGEST_SEED = (1 << 64) - 1
LONGEST_S = 1e8  # three years: longer waits overflow the clocks of torch and of Python's threads
LARGEST_WIDTH = 1 << 24  # of a layer: a larger weight matrix would take petabytes
LARGEST_DEPTH = 1 << 10  # layers


def whole_number(name: str, value: object, least: int = -LARGEST_INT64, most: int = LARGEST_INT64) -> int:
    """Return the number as an int. Python and NumPy integers are accepted, booleans and 2.0 are not."""
    number = whole(value)
    if number is None or not least <= number <= most:
        is_wide = number is not None and abs(number) > LARGEST_INT64 and most != LARGEST_SEED
        bits = ", within 64 bits" if is_wide else ""
        raise ValueError(f"{name} {shown(value)}: must be a whole number{_limits(least, most)}{bits}")
    return number


def whole(value: object) -> int | None:
    """Return a Python or NumPy integer as an int, for arguments of several kinds; None for other values."""
    try:
        return index(value) if _is_number(value) else None  # type: ignore[arg-type]
    except TypeError:
        return None


def seed_number(value: object, name: str = "seed") -> int:
    """Return a random seed: 64 bits."""
    return whole_number(name, value, 0, LARGEST_SEED)


def real_number(name: str, value: object) -> float:
    """Return a number, integer or not; the caller's limits decide about infinity and NaN."""
    if not _is_number(value) or not hasattr(value, "__float__"):
        raise ValueError(f"{name} {shown(value)}: must be a number")
    return float(value)


def checked_field(owner: object, name: str, check: Callable[..., Number], *limits: int) -> Number:
    """Check a field of a frozen dataclass, store it as a Python number, and return it.

    Python numbers are not converted, so that errors show them as they were given.
    """
    value = getattr(owner, name)
    number = check(name, value, *limits)
    if type(value) not in (int, float):
        object.__setattr__(owner, name, number)
    return number


def truth(name: str, value: object) -> bool:
    """Return True or False, from Python's or NumPy's booleans."""
    if type(value).__name__ not in ("bool", "bool_"):
        raise ValueError(f"{name} {shown(value)}: must be True or False")
    return bool(value)


def mapping_of(name: str, value: object, entries: str) -> Mapping[Any, Any]:
    """Return a mapping; `entries` describes its keys and values."""

    def refuse(given: object) -> NoReturn:
        raise ValueError(f"{name} {shown(given)}: must be a mapping from {entries}")

    return as_mapping(value, refuse)


def as_mapping(
    given: Given | Mapping[Any, Any], spread: Callable[[Given], Mapping[Any, Any]]
) -> Mapping[Any, Any]:
    """Return a mapping by type or by name: as given, or made by `spread` from a single value.

    Arguments that may be a value or a mapping are converted once, so that all other code takes mappings.
    """
    return given if isinstance(given, Mapping) else spread(given)


def list_of(name: str, value: object, example: str) -> Sequence[Any]:
    """Return a list or a tuple, or a vector (array, tensor, Series) as a list. Strings are rejected."""
    if getattr(value, "ndim", None) == 1 and hasattr(value, "tolist"):
        return list(value.tolist())
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise ValueError(f"{name} {shown(value)}: must be a list, as {example}")
    return value


def path_of(name: str, value: object) -> Path:
    """Return a path in the file system, from a string or a path object."""
    if not isinstance(value, str | os.PathLike):
        raise ValueError(f"{name} {shown(value)}: must be a path, as text or as a pathlib.Path")
    return Path(value)


def instance_of(name: str, value: object, kinds: type | tuple[type, ...], remedy: str) -> None:
    """Raise ValueError with the remedy unless the value is an instance of one of the types."""
    if not isinstance(value, kinds):
        raise ValueError(f"{name} {shown(value)}: {remedy}")


def one_of(name: str, value: object, kind: type[Choice]) -> Choice:
    """Return a member of an enumeration, from the member or its value."""
    try:
        return kind(value)
    except ValueError as error:
        words = ", ".join(repr(str(member.value)) for member in kind)
        raise ValueError(f"{name} {shown(value)}: must be one of {words}") from error


def check_word(name: str, value: object, words: object) -> None:
    """Raise ValueError unless the value is one of the strings of a `Literal`."""
    if not isinstance(value, str) or value not in get_args(words):
        raise ValueError(f"{name} {shown(value)}: must be one of {', '.join(get_args(words))}")


def column_name(value: object) -> None:
    """Raise ValueError unless the value can be the name of a column."""
    instance_of("column", value, str, "must be the name of a column, as text")


def graph_of(name: str, value: object) -> None:
    """Raise ValueError for an object that is not a graph, because it has no schema."""
    if not hasattr(value, "schema"):
        raise ValueError(f"{name} {shown(value)}: must be a graph, such as khop.open_graph returns")


def shown(value: object) -> str:
    """Return the repr of a short value, or the type of a long one."""
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else f"of type {type(value).__name__}"


def _is_number(value: object) -> bool:
    return not isinstance(value, bool | str | bytes) and type(value).__name__ not in ("bool_", "Tensor")


def _limits(least: int, most: int) -> str:
    words = {LARGEST_INT64: "2**63 - 1", LARGEST_SEED: "2**64 - 1", (1 << 31) - 1: "2**31 - 1"}
    if least == -LARGEST_INT64:
        return "" if most == LARGEST_INT64 else f" of at most {words.get(most, most)}"
    return f", {least} or more" if most == LARGEST_INT64 else f" from {least} to {words.get(most, most)}"


def toml_values(path: Path) -> dict[str, Any]:
    """Return the values of a TOML file; ValueError with the line if it is not TOML."""
    content = path.read_bytes()
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ValueError(f"{path}: not TOML: line {line} is not UTF-8; save the file as UTF-8") from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        lines, place = text.splitlines() or [""], re.search(r"at line (\d+)", str(error))
        line = int(place[1]) if place else len(lines)
        twice = re.search("verwrite|declare|mutate|redefine", str(error))
        reason = "defines a key or a table twice" if twice else "cannot be read"
        remedy = "remove it" if twice else "text needs quotes and lists need brackets, correct the line"
        written = shown(lines[min(line, len(lines)) - 1].strip())
    raise ValueError(f"{path}: not TOML: line {line}, {written}, {reason}; {remedy}")
