"""Questions about classes and attributes of values, found by the types that mypy infers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mypy import build
from mypy.config_parser import parse_config_file
from mypy.find_sources import create_source_list
from mypy.nodes import CallExpr, CastExpr, Expression, MypyFile, RefExpr, TypeInfo
from mypy.options import Options
from mypy.server.subexpr import get_subexpressions
from mypy.types import Instance, Type, TypeType, UnionType, get_proper_type

ASKS = {f"builtins.{name}" for name in ("isinstance", "issubclass", "getattr", "hasattr", "type")}


@dataclass(frozen=True)
class Ask:
    """A question, or a cast, about a value of one of the classes."""

    module: str
    line: int

    def __str__(self) -> str:
        return f"{self.module}:{self.line}"


def asks_of(source: Path, classes: set[str], settings: Path) -> list[Ask]:
    """Check a package with mypy, and find the questions about values of the named classes and subclasses.

    Takes about a minute: nothing is read from mypy's cache, which has no types of expressions.
    """
    options = Options()
    parse_config_file(options, lambda: None, str(settings), sys.stdout, sys.stderr)
    options.export_types, options.preserve_asts, options.incremental = True, True, False
    options.python_executable = sys.executable
    result = build.build(create_source_list([str(source)], options), options)
    assert not result.errors, result.errors
    seams = _Classes(classes, result.types)
    return [
        Ask(name, line)
        for name, tree in result.files.items()
        if name.partition(".")[0] == source.name
        for line in sorted(seams.asks_of(tree))
    ]


@dataclass(frozen=True)
class _Classes:
    names: set[str]  # full names; subclasses count too
    types: dict[Expression, Type]

    def asks_of(self, tree: MypyFile) -> Iterator[int]:
        """Yield the lines of questions and casts. Class patterns are no expressions, and left out."""
        for each in get_subexpressions(tree):
            if (
                isinstance(each, CallExpr)
                and isinstance(each.callee, RefExpr)
                and each.callee.fullname in ASKS
            ):
                asked = any(map(self._is_one, each.args))
            else:
                asked = isinstance(each, CastExpr) and (
                    self._is_one(each.expr) or any(map(self._is_named, infos(each.type)))
                )
            if asked:
                yield each.line

    def _is_one(self, argument: Expression) -> bool:
        if isinstance(argument, RefExpr) and isinstance(argument.node, TypeInfo):
            return self._is_named(argument.node)
        inferred = self.types.get(argument)
        return inferred is not None and any(map(self._is_named, infos(inferred)))

    def _is_named(self, info: TypeInfo) -> bool:
        return any(base.fullname in self.names for base in info.mro)


def infos(of: Type) -> Iterator[TypeInfo]:
    """Yield the classes of a type, of each item of a union, and of a class as a value."""
    proper = get_proper_type(of)
    if isinstance(proper, Instance):
        yield proper.type
    elif isinstance(proper, UnionType):
        for item in proper.items:
            yield from infos(item)
    elif isinstance(proper, TypeType):
        yield from infos(proper.item)
