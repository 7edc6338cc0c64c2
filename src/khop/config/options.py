"""Tables of components: a table of a run with the fields of the options that a component declares."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from dataclasses import Field as DataclassField
from enum import StrEnum
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from pydantic import BaseModel, Field, create_model, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from khop.config.section import Section, plain_type

AnyTable = TypeVar("AnyTable", bound=Section)
_PLAIN = (str, int, float, bool)


@cache
def composed(table: type[Section], declared: type) -> type[Section]:
    """Return the table with the fields of the options; a declared table of this kind is that table itself.

    ValueError if the options have fields of other types than a table of a run can have, or one named `kind`.
    """
    if issubclass(declared, table):
        return declared
    new = {name: (_annotation(declared, name, kind), info) for name, kind, info in _declared(declared)}
    if not new:
        return table
    if "kind" in new:
        raise ValueError(f"{declared.__name__}.kind: kind names the component itself; rename this option")

    def accepted(self: Section) -> Section:
        _made(self, declared)  # pydantic adds the path of the table to an error of one of its fields
        return self

    made: type[Section] = create_model(  # type: ignore[call-overload]
        table.__name__,
        __base__=table,
        __doc__=table.__doc__,
        __module__=__name__,
        __validators__={"_accepted": model_validator(mode="after")(accepted)},
        **new,
    )
    return made


def options_of(table: Section, declared: type) -> Any:  # noqa: ANN401
    """Return the options of a component: the values of a table as the type that the component declares."""
    return table if isinstance(table, declared) else _made(table, declared)


def _made(table: Section, declared: type) -> Any:  # noqa: ANN401
    return declared(**{name: getattr(table, name) for name, _, _ in _declared(declared)})


def with_values(table: AnyTable, options: object) -> AnyTable:
    """Return the table with the values of a component's options."""
    if isinstance(options, type(table)):
        return options
    names = [name for name, _, _ in _declared(type(options))]
    return table.model_copy(update={name: getattr(options, name) for name in names})


def _declared(declared: type) -> Iterator[tuple[str, Any, FieldInfo]]:
    """Yield name, annotation and field of each option."""
    helps = _helps(declared)
    if issubclass(declared, BaseModel):
        for name, info in declared.model_fields.items():
            yield name, _described(info.annotation, info.description or helps.get(name)), info
        return
    if not is_dataclass(declared):
        raise ValueError(
            f"its Options, {declared.__name__}, are neither a dataclass nor a pydantic model; make them one"
        )
    hints = get_type_hints(declared, include_extras=True)
    for entry in fields(declared):
        if not entry.init:
            continue
        info = _field(entry)
        text = entry.metadata.get("help") or info.description or helps.get(entry.name)
        yield entry.name, _described(hints[entry.name], text), info


def _described(annotation: Any, text: str | None) -> Any:  # noqa: ANN401
    return Annotated[annotation, Field(description=text)]


def _field(entry: DataclassField[Any]) -> FieldInfo:
    match entry.default:
        case FieldInfo() as info:  # of a dataclass of pydantic
            return info
    default = PydanticUndefined if entry.default is MISSING else entry.default
    made = None if entry.default_factory is MISSING else entry.default_factory
    return FieldInfo(default=default, default_factory=made)


def _annotation(declared: type, name: str, annotation: Any) -> Any:  # noqa: ANN401
    """Return the annotation for a table; ValueError for a type that TOML and options cannot give."""
    kind = plain_type(annotation)
    is_tuple = get_origin(kind) is tuple and set(get_args(kind)[:1]) <= {str, int, float}
    is_words = isinstance(kind, type) and issubclass(kind, StrEnum)
    if (is_tuple and get_args(kind)[1:] == (...,)) or is_words:
        return Annotated[annotation, Field(strict=False)]  # TOML gives a list, and text
    if kind in _PLAIN or (get_origin(kind) is Literal and all(isinstance(v, str) for v in get_args(kind))):
        return annotation
    raise ValueError(
        f"{declared.__name__}.{name} is of type {kind}: options are str, int, float, bool, Literal of "
        "words, a StrEnum, or a tuple such as tuple[int, ...]"
    )


def _helps(declared: type) -> Mapping[str, str]:
    """Return the strings below the fields of a class, and of the classes that it extends."""
    found: dict[str, str] = {}
    for base in reversed(declared.__mro__):
        if base.__module__ in ("builtins", "pydantic.main", "abc"):
            continue
        try:
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        except (OSError, TypeError, SyntaxError, ValueError):  # made without a file, as in a shell
            continue
        body = tree.body if isinstance(tree, ast.ClassDef) else []
        for field, below in pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                text = _text(below)
                found |= {} if text is None else {field.target.id: " ".join(text.split())}
    return found


def _text(statement: ast.stmt) -> str | None:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None
