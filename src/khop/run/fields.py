"""Settings of a run as a flat list, from which options, errors and docs/run-file.md are generated.

`options.json` has them, with the options of built-in components, so that the command starts without torch and
pydantic. scripts/options-file writes it from the classes, and a test compares the two.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from khop.components import FAMILIES

Fanout = int | dict[str, int]  # for all edge types, or by edge type name or pattern
Value = str | int | float | bool | tuple[Fanout, ...] | tuple[str, ...] | tuple[float, ...] | None
FILE = Path(__file__).with_name("options.json")
# Option names that custom components cannot use, because commands use them.
OPTIONS_OF_COMMANDS = frozenset(
    {
        "--help",
        "--help-all",
        "--debug",
        "--resume",
        "--procs",
        "--oversubscribe",
        "--json",
        "--steps",
        "--allow-code",
    }
)
_TYPES: Mapping[str, type] = {each.__name__: each for each in (str, int, float, bool, tuple)}


# Values that options.json leaves out.
_EMPTY: Mapping[str, Any] = {
    "aliases": (),
    "kind": "str",
    "item": "int",
    "choices": (),
    "is_worded": False,
    "default": None,
    "default_words": "",
    "required": False,
}


@dataclass(frozen=True)
class RunField:
    """One setting of a run."""

    path: str  # dotted, as in run.toml: "training.epochs"
    option: str  # on the command line: "--epochs"
    aliases: tuple[str, ...]  # other names of the option: "--lr"
    kind: type  # str, int, float, bool or tuple
    item: type  # of a tuple: str, float, or int, also for a list of fanouts
    choices: tuple[str, ...]  # the allowed strings; empty if the field takes other values
    allowed: str  # the allowed values, in words
    is_worded: bool  # `allowed` is written in the field's declaration, not derived from its type
    description: str
    default: Value
    default_words: str  # description of the default; empty if the value is clear
    required: bool

    @property
    def section(self) -> str:
        """The table of run.toml that contains the field; "" for the top level."""
        return self.path.rpartition(".")[0]

    def document(self) -> dict[str, object]:
        """Return the field in the form of options.json; kinds of components are added by the reader."""
        names = {"kind": self.kind.__name__, "item": self.item.__name__}
        found = vars(self) | names
        if self.path.removesuffix(".kind") in FAMILIES:
            found |= {"choices": (), "allowed": ""}
        return {name: value for name, value in found.items() if value != _EMPTY.get(name)}


@dataclass(frozen=True)
class KindOptions:
    """The options of one of khop's components."""

    summary: str  # for the help of the kind; empty if the name is clear
    rule: str | None  # of a model: the kind of rule that draws its neighbors
    other_kinds: Mapping[
        str, Mapping[str, str]
    ]  # alternative names, each with the settings that it stands for
    names: frozenset[str]  # of all settings in its table
    unread: frozenset[str]  # settings that the table has but the component does not read
    column_setting: str  # of a rule, the setting that names its column; empty: sampler.weight
    options: tuple[tuple[RunField, Mapping[str, Any]], ...]  # with limits of their values


def _field(document: Mapping[str, Any]) -> RunField:
    found = {**_EMPTY, **{name: of for name, of in document.items() if name != "limits"}}
    family = FAMILIES.get(found["path"].removesuffix(".kind"))
    if family is not None:
        found |= {"choices": family.kinds(), "allowed": family.allowed()}
    if found["kind"] == "tuple" and found["default"] is not None:
        found["default"] = tuple(found["default"])
    types = {"kind": _TYPES[found["kind"]], "item": _TYPES[found["item"]]}
    return RunField(
        **found | types | {"aliases": tuple(found["aliases"]), "choices": tuple(found["choices"])}
    )


@cache
def _document() -> Any:  # noqa: ANN401
    return json.loads(FILE.read_text(encoding="utf-8"))


@cache
def run_fields() -> tuple[RunField, ...]:
    """Return every field of a run with khop's default components, table by table."""
    return tuple(map(_field, _document()["fields"]))


@cache
def _by_path() -> Mapping[str, RunField]:
    return {entry.path: entry for entry in run_fields()}


def field_at(path: str) -> RunField | None:
    """Return the field at a dotted path of a run with khop's default components, or None."""
    return _by_path().get(path)


def option_of(path: str) -> str:
    """Return the option of a field; for a component of another package, the name derived from the path."""
    entry = field_at(path)
    if entry is None and path in kind_fields():
        entry, _ = kind_fields()[path]
    if entry is not None:
        return entry.option
    *above, name = path.split(".")
    option = f"--{'rule-' * (above[-1:] == ['rule'])}{name.replace('_', '-')}"
    taken = {each for entry in run_fields() for each in (entry.option, *entry.aliases)} | OPTIONS_OF_COMMANDS
    return f"--{above[-1]}-{option.removeprefix('--')}" if option in taken else option


@cache
def kind_options(path: str, kind: str) -> KindOptions:
    """Return the options of one of khop's components, by the path of its table."""
    found = _document()["kinds"][path][kind]
    options = tuple((_field(each), each.get("limits", {})) for each in found["options"])
    return KindOptions(
        found["summary"],
        found["rule"],
        found["other_kinds"],
        frozenset(found["names"]),
        frozenset(found["unread"]),
        found["column_setting"],
        options,
    )


@cache
def kind_fields() -> dict[str, tuple[RunField, tuple[str, ...]]]:
    """Return the fields that only some built-in components have, by path, with the kinds that have them."""
    found: dict[str, tuple[RunField, tuple[str, ...]]] = {}
    for path, family in FAMILIES.items():
        for kind in family.builtin:
            for entry in fields_of_kind(path, kind):
                before, kinds = found.get(entry.path, (entry, ()))
                widest = max(entry, before, key=lambda each: len(each.choices))  # kinds may allow fewer words
                found[entry.path] = widest, (*kinds, kind)
    return found


def fields_of_kind(path: str, kind: str) -> Iterator[RunField]:
    """Yield the options of a built-in component that a run with default components does not have."""
    for entry, _ in kind_options(path, kind).options:
        if entry.path not in _by_path():
            yield entry
