"""The public API is written down: names, signatures, and the public members of classes.

It is `khop.__all__`, the names of `khop.models`, `khop.pyg` and `khop.testing`, and the names that pages of
docs/ import from other modules, which belong to components of one's own.

After a change that is wanted, and is in CHANGELOG.md: python tests/test_public_api.py
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from pathlib import Path

import khop
import khop.models
import khop.testing
from khop import pyg

ROOT = Path(khop.__file__).parent
FROZEN = Path(__file__).with_name("public_api.txt")
DOCS = Path(__file__).parents[1] / "docs"
IMPORT = re.compile(r"^from (khop\.[\w.]+) import ([\w, ]+)$", re.MULTILINE)
PARTLY = {"models", "pyg", "testing"}  # packages with public names of their own


def public_api() -> str:
    named = {name: getattr(khop, name) for name in khop._PUBLIC}
    named |= {f"models.{name}": getattr(khop.models, name) for name in khop.models.__all__}
    named |= {f"pyg.{name}": getattr(pyg, name) for name in pyg.__all__}
    named |= {f"{module}.{name}": getattr(import_module(module), name) for module, name in imported_by_docs()}
    suites = f"testing: {', '.join(khop.testing.SUITES)}"
    return "\n".join([*(line for name in sorted(named) for line in _lines(name, named[name])), suites, ""])


def imported_by_docs() -> set[tuple[str, str]]:
    """The module and the name of each import from a module that is not public as a whole."""
    return {
        (module, name.strip())
        for page in DOCS.rglob("*.md")
        for module, names in IMPORT.findall(page.read_text())
        for name in names.split(",")
        if module.split(".")[1] not in PARTLY
    }


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
    if set(signature.parameters) == {"args", "kwargs"}:
        return "(*args, **kwargs)"  # of torch.nn.Module or a protocol, in the words of the installed version
    return re.sub(r" at 0x[0-9a-f]+", "", str(signature))


def test_the_public_api_is_as_written_down() -> None:
    assert public_api() == FROZEN.read_text(), "if this change is wanted: python tests/test_public_api.py"


def test_each_public_name_is_in_the_file() -> None:
    named = set(re.findall(r"^([\w.]+)", FROZEN.read_text(), re.MULTILINE))
    others = {f"{module}.{name}" for module, name in imported_by_docs()} | {"testing"}
    of_packages = {f"models.{name}" for name in khop.models.__all__} | {f"pyg.{name}" for name in pyg.__all__}
    assert named == set(khop._PUBLIC) | of_packages | others
    assert len(others) > 5


def test_a_module_that_is_not_public_says_so_or_its_package_does() -> None:
    tops = [*ROOT.glob("*/__init__.py"), *ROOT.glob("*.py")]
    silent = {
        path.parent.name if path.stem == "__init__" else path.stem
        for path in tops
        if "Internal: its names may change" not in path.read_text()
    }
    assert silent == {"khop", *PARTLY}
    for package in PARTLY:
        assert "internal: their names may" in import_module(f"khop.{package}").__doc__


def test_a_signature_that_changes_is_seen() -> None:
    def before(a: int, *, b: str = "x") -> int:
        return a

    def after(a: int, *, b: str = "y") -> int:
        return a

    assert list(_lines("f", before)) != list(_lines("f", after))
    assert list(_lines("f", before)) == ["f(a: 'int', *, b: 'str' = 'x') -> 'int'"]


if __name__ == "__main__":
    FROZEN.write_text(public_api())
