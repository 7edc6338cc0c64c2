"""Command-line options made from the fields of a run. A new field becomes an option without further code."""

from __future__ import annotations

import inspect
import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated

import typer
from rich.markup import escape

from khop.config.fields import RunField, Value
from khop.config.values import Fanout

Options = Mapping[str, object]  # dotted path -> value, only of the given options
Command = Callable[..., None]
_METAVARS = {str: "TEXT", int: "INT", float: "NUMBER", tuple: "INT,INT,..."}


def takes_run_options(fields: Iterable[RunField], default: str | None = None) -> Callable[[Command], Command]:
    """Replace the last parameter of a command, `options`, by one typer option per field.

    `default` replaces the defaults in the help, if they differ from the defaults of a new run.
    """
    by_name = {entry.option.removeprefix("--").replace("-", "_"): entry for entry in fields}

    def with_options(command: Command) -> Command:
        # typer passes options by name, and the names come from the fields. Hence the only **kwargs of khop.
        def called(**given: object) -> None:
            values = {entry.path: _parsed(entry, given.pop(name)) for name, entry in by_name.items()}
            command(**given, options={path: value for path, value in values.items() if value is not None})

        *own, last = inspect.signature(command, eval_str=True).parameters.values()
        assert last.name == "options", last
        signature = inspect.Signature([*own, *(_parameter(n, e, default) for n, e in by_name.items())])
        called.__signature__ = signature  # type: ignore[attr-defined]
        called.__annotations__ = {name: each.annotation for name, each in signature.parameters.items()}
        called.__doc__ = command.__doc__
        return called

    return with_options


def _parameter(name: str, entry: RunField, default: str | None) -> inspect.Parameter:
    # Numbers are passed as text too, so that a single place, config.read, reports errors in them.
    kind = bool | None if entry.kind is bool else str | None
    annotation = Annotated[kind, _option(entry, default)]  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _option(entry: RunField, default: str | None) -> object:
    section = entry.section or "machine and files"
    text = _help(entry, _default_of(entry) if default is None else f" (default: {default})")
    if entry.kind is bool:
        flags = f"{entry.option}/--no-{entry.option.removeprefix('--')}"
        # A separate panel: a column for --no-... would leave too little room for the names of other options.
        return typer.Option(flags, help=text, show_default=False, rich_help_panel=f"{section} (flags)")
    choices = list(entry.choices)
    return typer.Option(
        entry.option,
        *entry.aliases,
        help=text,
        show_default=False,
        metavar="|".join(choices) or _METAVARS[entry.kind],
        autocompletion=(lambda: choices) if choices else None,
        rich_help_panel=section,
    )


def _help(entry: RunField, default: str) -> str:
    return escape(f"{entry.description}{default}.")  # else "[tensorboard]" would be read as a style


def _default_of(entry: RunField) -> str:
    value, words = shown(entry.default), entry.default_words
    if not value:
        return f" (default: {words})" if words else ""
    return f" (default {value}: {words})" if words else f" (default {value})"


def shown(value: Value) -> str:
    """Format a value as in the argument of its option; "" for None."""
    if isinstance(value, tuple):
        return ",".join(map(_shown_fanout, value))
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def _shown_fanout(fanout: Fanout) -> str:
    if isinstance(fanout, int):
        return str(fanout)
    return "{" + ", ".join(f"{json.dumps(name)} = {number}" for name, number in fanout.items()) + "}"


def _parsed(entry: RunField, value: object) -> object:
    """Convert a value to its TOML type. Text that is not a number stays text, and `checked` reports it."""
    if not isinstance(value, str):
        return value
    if entry.kind is tuple and "{" in value:
        return _tables(value)
    if entry.kind is tuple:
        return [_number(int, part) for part in value.split(",") if part.strip()]
    return _number(entry.kind, value) if entry.kind in (int, float) else value


def _tables(text: str) -> object:
    """Parse a TOML list without its brackets. Other text stays text."""
    try:
        return tomllib.loads(f"list = [{text}]")["list"]
    except tomllib.TOMLDecodeError:
        return text


def _number(kind: type, text: str) -> object:
    try:
        return kind(text)
    except ValueError:
        return text


def named(values: Mapping[str, object]) -> frozenset[str]:
    """Return the fields with a value other than 0 or empty."""
    return frozenset(name for name, value in values.items() if value)
