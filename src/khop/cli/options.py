"""Command-line options made from the fields of a run: a new field is an option without another line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated

import typer

from khop.config.fields import RunField, Value, run_fields

Options = Mapping[str, object]  # dotted path -> value, of the options that were given
Command = Callable[..., None]
_METAVARS = {str: "TEXT", int: "INT", float: "NUMBER", tuple: "INT,INT,..."}


def takes_run_options(command: Callable[[str | None, bool, Options], None]) -> Command:
    """`command(source, as_json, options)` as a function with one typer option per field of a run."""

    # typer passes options by name, and only the fields know the names: hence the one **kwargs of the package.
    def with_options(source: str | None, as_json: bool, **given: object) -> None:
        fields = {_parameter_name(entry): entry for entry in run_fields()}
        options = {
            fields[name].path: _parsed(fields[name], value)
            for name, value in given.items()
            if value is not None
        }
        command(source, as_json, options)

    fixed = list(inspect.signature(command, eval_str=True).parameters.values())[:2]
    signature = inspect.Signature([*fixed, *map(_parameter, run_fields())])
    with_options.__signature__ = signature  # type: ignore[attr-defined]
    with_options.__annotations__ = {
        name: parameter.annotation for name, parameter in signature.parameters.items()
    }
    with_options.__doc__ = command.__doc__
    return with_options


def _parameter_name(entry: RunField) -> str:
    return entry.option.removeprefix("--").replace("-", "_")


def _parameter(entry: RunField) -> inspect.Parameter:
    annotation = Annotated[_annotation(entry), _option(entry)]  # type: ignore[valid-type]
    return inspect.Parameter(
        _parameter_name(entry), inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


def _annotation(entry: RunField) -> object:
    # Numbers are taken as text too: then one place, config.read, says what is wrong with them.
    return bool | None if entry.kind is bool else str | None


def _option(entry: RunField) -> object:
    section = entry.section or "machine and files"
    if entry.kind is bool:
        flags = f"{entry.option}/--no-{entry.option.removeprefix('--')}"
        return typer.Option(flags, help=_help(entry), show_default=False, rich_help_panel=section)
    choices = list(entry.choices)
    return typer.Option(
        entry.option,
        help=_help(entry),
        show_default=False,
        metavar="|".join(choices) or _METAVARS[entry.kind],
        autocompletion=(lambda: choices) if choices else None,
        rich_help_panel=section,
    )


def _help(entry: RunField) -> str:
    default = shown(entry.default)
    return f"{entry.description}; default: {default}" if default else entry.description


def shown(value: Value) -> str:
    """A value as one would give it to its option; "" for none."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def _parsed(entry: RunField, value: object) -> object:
    """The value as TOML would have it; text that is no number stays text, for `checked` to name."""
    if not isinstance(value, str):
        return value
    if entry.kind is tuple:
        return [_number(int, part) for part in value.split(",") if part.strip()]
    return _number(entry.kind, value) if entry.kind in (int, float) else value


def _number(kind: type, text: str) -> object:
    try:
        return kind(text)
    except ValueError:
        return text
