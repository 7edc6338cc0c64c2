"""Options that belong together, as the fields of a frozen dataclass that a command takes as one parameter."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_type_hints

Command = Callable[..., None]


def takes_groups(command: Command) -> Command:
    """Replace each parameter of a command that is a dataclass by one typer option per field."""
    parameters = inspect.signature(command, eval_str=True).parameters
    groups: dict[str, Any] = {
        name: each.annotation for name, each in parameters.items() if is_dataclass(each.annotation)
    }

    # typer passes options by name, and the names come from the fields.
    def called(**given: object) -> None:
        made = {
            name: kind(**{f.name: given.pop(f.name) for f in fields(kind)}) for name, kind in groups.items()
        }
        command(**given, **made)

    options = [option for each in parameters.values() for option in _options(each)]
    vars(called)["__signature__"] = inspect.Signature(options)
    called.__annotations__ = {option.name: option.annotation for option in options}
    called.__doc__ = command.__doc__
    return called


def _options(parameter: inspect.Parameter) -> Iterator[inspect.Parameter]:
    """Yield the options of a parameter: one per field of a group, else the parameter."""
    kind: Any = parameter.annotation
    if not is_dataclass(kind):
        yield parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        return
    hints = get_type_hints(kind, include_extras=True)
    for entry in fields(kind):
        default = inspect.Parameter.empty if entry.default is MISSING else entry.default
        yield inspect.Parameter(
            entry.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[entry.name]
        )
