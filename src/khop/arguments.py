"""Checks of single arguments: ValueError with the value, the reason and the remedy, where they enter."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from enum import Enum
from operator import index
from pathlib import Path
from typing import Any, TypeVar

Choice = TypeVar("Choice", bound=Enum)
LARGEST_INT64 = (1 << 63) - 1
LARGEST_SEED = (1 << 64) - 1
LARGEST_WIDTH = 1 << 24  # of a layer: beyond it a weight matrix takes petabytes
LARGEST_DEPTH = 1 << 10  # layers


def whole_number(name: str, value: object, least: int = -LARGEST_INT64, most: int = LARGEST_INT64) -> int:
    """The number as an int: Python's or NumPy's, not a boolean and not 2.0."""
    try:
        number = index(value) if _is_number(value) else None  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        is_wide = number is not None and abs(number) > LARGEST_INT64 and most != LARGEST_SEED
        bits = ", within 64 bits" if is_wide else ""
        raise ValueError(f"{name} {shown(value)}: must be a whole number{_limits(least, most)}{bits}")
    return number


def seed_number(value: object, name: str = "seed") -> int:
    """A seed of random draws: 64 bits."""
    return whole_number(name, value, 0, LARGEST_SEED)


def real_number(name: str, value: object) -> float:
    """A number, whole or not; infinity and NaN are left to the caller's limits."""
    if not _is_number(value) or not hasattr(value, "__float__"):
        raise ValueError(f"{name} {shown(value)}: must be a number")
    return float(value)


def truth(name: str, value: object) -> bool:
    """True or False, Python's or NumPy's."""
    if type(value).__name__ not in ("bool", "bool_"):
        raise ValueError(f"{name} {shown(value)}: must be True or False")
    return bool(value)


def mapping_of(name: str, value: object, entries: str) -> Mapping[Any, Any]:
    """A mapping; `entries` says from what to what."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} {shown(value)}: must be a mapping from {entries}")
    return value


def list_of(name: str, value: object, example: str) -> Sequence[Any]:
    """A list or a tuple, and no text."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise ValueError(f"{name} {shown(value)}: must be a list, as {example}")
    return value


def path_of(name: str, value: object) -> Path:
    """A path in the file system, given as text or as a path."""
    if not isinstance(value, str | os.PathLike):
        raise ValueError(f"{name} {shown(value)}: must be a path, as text or as a pathlib.Path")
    return Path(value)


def instance_of(name: str, value: object, kinds: type | tuple[type, ...], remedy: str) -> None:
    """ValueError unless the value is of one of the kinds; `remedy` says what to give."""
    if not isinstance(value, kinds):
        raise ValueError(f"{name} {shown(value)}: {remedy}")


def one_of(name: str, value: object, kind: type[Choice]) -> Choice:
    """The member of an enumeration that the value is or names."""
    try:
        return kind(value)
    except ValueError as error:
        words = ", ".join(repr(str(member.value)) for member in kind)
        raise ValueError(f"{name} {shown(value)}: must be one of {words}") from error


def graph_of(name: str, value: object) -> None:
    """ValueError for what cannot be a graph: it has no schema."""
    if not hasattr(value, "schema"):
        raise ValueError(f"{name} {shown(value)}: must be a graph, as khop.open_graph gives it")


def shown(value: object) -> str:
    """A short value as Python writes it, of a long one its type."""
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else f"of type {type(value).__name__}"


def _is_number(value: object) -> bool:
    return not isinstance(value, bool | str | bytes) and type(value).__name__ not in ("bool_", "Tensor")


def _limits(least: int, most: int) -> str:
    words = {LARGEST_INT64: "2**63 - 1", LARGEST_SEED: "2**64 - 1", (1 << 31) - 1: "2**31 - 1"}
    if least == -LARGEST_INT64:
        return "" if most == LARGEST_INT64 else f" of at most {words.get(most, most)}"
    return f", {least} or more" if most == LARGEST_INT64 else f" from {least} to {words.get(most, most)}"
