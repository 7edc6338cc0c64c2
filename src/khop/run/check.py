"""Validation of the settings of a run, and their conversion to and from TOML.

An error is one sentence. `facts_of` returns the settings that must agree between ranks and with a resumed
checkpoint.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from importlib import import_module
from typing import TypeVar

import tomli_w
from pydantic import ValidationError
from pydantic_core import ErrorDetails

import khop
from khop.components import Component
from khop.run.fields import RunField, field_at
from khop.run.read import COMMAND_LINE, RESUMABLE, RawRun, implied, with_options
from khop.run.run_type import accepted, composed, field_in, fields_of, run_type, sections, value_at
from khop.run.tables import Section
from khop.run.values import RunConfig

AnyTable = TypeVar("AnyTable", bound=Section)


def run_type_of(raw: RawRun) -> type[RunConfig]:
    """Return the class of a run, with the options of the components that it names."""
    return _type_of(implied(raw))


def fields_of_others(raw: RawRun) -> list[RunField]:
    """Return the fields of the named components that a run with default components does not have."""
    return [entry for entry in fields_of(run_type_of(raw)) if field_at(entry.path) is None]


def checked(raw: RawRun) -> RunConfig:
    """Validate a run. Raises ValueError with the first invalid field, its value, allowed values and source.

    Omitted settings that follow from others are filled in; `notes_on` names them. The device "auto" is
    replaced by the device of this machine.
    """
    full = implied(raw)
    config = _validated(full, _type_of(full))
    try:
        accepted(config)
    except ValueError as error:
        raise ValueError(_of_table(str(error), full)) from error
    return config if config.device != AUTO else config.model_copy(update={"device": _device_for(config)})


AUTO = "auto"


def _device_for(config: RunConfig) -> str:
    """Return the default device of a run: a GPU, unless there is none or a setting needs the CPU."""
    if config.links.hard_negatives:  # in host memory
        return "cpu"
    return "cuda" if _num_gpus() else "cpu"


def _num_gpus() -> int:
    count: int = import_module("khop.loading.device.streams").num_gpus()  # imports torch
    return count


def on_this_machine(raw: RawRun, notice: Callable[[str], None]) -> RawRun:
    """Return a recorded run on a device of this machine; if it was trained on another, `notice` gets a line.

    A device from an option is not replaced.
    """
    device = raw.values.get("device")
    gpu = re.fullmatch(r"cuda(?::(\d+))?", device) if isinstance(device, str) else None
    if gpu is None or "device" in raw.options or int(gpu[1] or 0) < (count := _num_gpus()):
        return raw
    found = "cuda" if count else "cpu"
    there = f"{count} GPU{'s' * (count > 1)}" if count else "no GPU"
    notice(f"device is {found}: the run was trained on {device}, and torch finds {there} on this machine")
    return with_options(raw, {"device": found})


def _type_of(raw: RawRun) -> type[RunConfig]:
    return run_type(raw.values, raw.permission_at, raw.where)


def checked_options(raw: RawRun, component: Component) -> dict[str, object]:
    """Validate the options of a component that is not part of a run, as `checked` does for a run."""
    table = composed(Section, component.options)
    made = _validated(raw, table)
    return {name: getattr(made, name) for name in table.model_fields}


def component_fields(component: Component, taken: Set[str], prefix: str) -> list[RunField]:
    """Return the fields of a component's options; an option name in `taken` gets the prefix."""
    found = fields_of(composed(Section, component.options))
    return [
        replace(entry, option=f"--{prefix}-{entry.option.removeprefix('--')}")
        if entry.option in taken
        else entry
        for entry in found
    ]


def _validated(raw: RawRun, table: type[AnyTable]) -> AnyTable:
    try:
        return table.model_validate(raw.values)
    except ValidationError as error:
        raise ValueError(_sentence(error.errors(include_url=False)[0], raw, table)) from None


def to_toml(config: RunConfig) -> str:
    """Return the run as TOML, from which `read_toml` and `checked` make an equal run."""
    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True))


def _sentence(error: ErrorDetails, raw: RawRun, run: type[Section]) -> str:
    names = _names_of_field([str(part) for part in error["loc"] if isinstance(part, str)], run)
    path = ".".join(names)
    entry = field_in(path, run)
    if error["type"] == "extra_forbidden":
        return f"{path}: no such field; {_hint(names, run)} ({raw.source})"
    if error["type"] == "missing":
        assert entry is not None
        in_file = "" if raw.source == COMMAND_LINE else f", or {path} = ... in the file"
        return f"{path} is missing: give {entry.option}{in_file} ({raw.source})"
    if entry is None and error["type"] == "value_error":  # of a whole table
        message = str(error["ctx"]["error"])
        return _of_table(message if path in message else f"{path}: {message}", raw)
    value = _shown(_value(raw.values, names, entry))
    if error["type"] in ("value_error", "assertion_error") and entry is not None and not entry.is_worded:
        return f"{path} is {value}: {error['ctx']['error']} ({raw.where(path)})"
    allowed = _allowed(entry)
    if error["type"] == "less_than_equal" and "at most" not in allowed:
        allowed += f" and at most {error['ctx']['le']}"
    return f"{path} is {value}: must be {allowed} ({raw.where(path)})"


def _of_table(message: str, raw: RawRun) -> str:
    """Return an error about several fields, with the file and the options that set them."""
    options = [option for at, option in raw.options.items() if at in message]
    return f"{message} ({', '.join([raw.source, *options])})"


def _names_of_field(names: list[str], run: type[Section]) -> list[str]:
    """Keep the names up to a field. For an entry of a list, pydantic appends the type that did not match."""
    lengths = (length for length in range(len(names)) if field_in(".".join(names[:length]), run))
    return names[: next(lengths, len(names))]


def _allowed(entry: RunField | None) -> str:
    return "a table of fields" if entry is None else entry.allowed


def _value(values: Mapping[str, object], names: list[str], entry: RunField | None) -> object:
    """Return the value of a field as written, or else its default, which a component may reject too."""
    value: object = values
    for name in names:
        match value:
            case Mapping() if name in value:
                value = value[name]
            case _:
                return None if entry is None else entry.default
    return value


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(list(value)) if isinstance(value, tuple) else repr(value)


def _hint(names: list[str], run: type[Section]) -> str:
    section, name = ".".join(names[:-1]), names[-1]
    here = list(sections(run)[section].model_fields)
    leaves = {path.rpartition(".")[2]: path for path in reversed([entry.path for entry in fields_of(run)])}
    close = difflib.get_close_matches(name, here, n=1, cutoff=0.7)
    if close:
        return f"did you mean {'.'.join([*names[:-1], close[0]])}?"
    elsewhere = difflib.get_close_matches(name, leaves, n=1, cutoff=0.7)
    if elsewhere:
        return f"did you mean {leaves[elsewhere[0]]}?"
    return f"there are {', '.join(here)}"


def facts_of(config: RunConfig, graph_fingerprint: str) -> Mapping[str, str]:
    """Return all settings that determine the results of a run, by dotted path, with graph and khop version.

    The graph is compared by its content, not by its path.
    """
    free = RESUMABLE | {"graph", "out"}
    if config.training.schedule != "constant":  # then every update depends on the number of epochs
        free -= {"training.epochs", "training.max_steps"}
    deciding = [entry.path for entry in fields_of(type(config)) if entry.path not in free]
    settings = {path: str(value_at(config, path)) for path in deciding}
    return {**settings, "graph": graph_fingerprint, "khop": khop.__version__}
