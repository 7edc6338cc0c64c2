"""The public API is written down: names, signatures, and the public members of classes.

After a change that is wanted, and is in CHANGELOG.md: python tests/test_public_api.py
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

import khop

ROOT = Path(khop.__file__).parent
FROZEN = Path(__file__).with_name("public_api.txt")


def public_api() -> str:
    return (
        "\n".join(line for name in sorted(khop._PUBLIC) for line in _lines(name, getattr(khop, name))) + "\n"
    )


def _lines(name: str, value: object) -> Iterator[str]:
    if not isinstance(value, type):
        yield f"{name}{_signature(value)}" if callable(value) else f"{name} = {value}"
        return
    if issubclass(value, Enum):
        yield f"{name}: {', '.join(member.name for member in value)}"
        return
    yield f"{name}{_signature(value)}"
    for member in sorted(vars(value)):
        if not member.startswith("_"):
            yield from _member(f"  {name}.{member}", inspect.getattr_static(value, member))


def _member(name: str, value: object) -> Iterator[str]:
    if isinstance(value, classmethod | staticmethod):
        yield f"{name}{_signature(value.__func__)}"
    elif inspect.isfunction(value):
        yield f"{name}{_signature(value)}"
    elif not hasattr(value, "__set__") or isinstance(value, property):
        yield name


def _signature(value: object) -> str:
    try:
        signature = inspect.signature(value)  # type: ignore[arg-type]
    except ValueError:  # of an exception, which takes any arguments
        return ""
    return re.sub(r" at 0x[0-9a-f]+", "", str(signature))


def test_the_public_api_is_as_written_down() -> None:
    assert public_api() == FROZEN.read_text(), "if this change is wanted: python tests/test_public_api.py"


def test_each_public_name_is_in_the_file() -> None:
    named = set(re.findall(r"^(\w+)", FROZEN.read_text(), re.MULTILINE))
    assert named == set(khop._PUBLIC)


def test_a_package_that_is_not_public_says_so() -> None:
    packages = {path.parent.name: path.read_text() for path in ROOT.glob("*/__init__.py")}
    silent = {name for name, text in packages.items() if "Internal: its names may change" not in text}
    assert silent == {"models", "pyg", "testing"}


def test_a_signature_that_changes_is_seen() -> None:
    def before(a: int, *, b: str = "x") -> int:
        return a

    def after(a: int, *, b: str = "y") -> int:
        return a

    assert list(_lines("f", before)) != list(_lines("f", after))
    assert list(_lines("f", before)) == ["f(a: 'int', *, b: 'str' = 'x') -> 'int'"]


if __name__ == "__main__":
    FROZEN.write_text(public_api())
