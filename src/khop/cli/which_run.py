"""The run argument of commands: a file, a preset of khop, or only options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from khop.cli.run_folder import CONFIG, is_run_folder
from khop.components import ANY_NAMED, Permission
from khop.config.fields import run_fields
from khop.config.kinds import FAMILIES
from khop.config.presets import preset, preset_names
from khop.config.read import COMMAND_LINE, RawRun, read_toml, run_type_of, with_options
from khop.config.values import RunConfig

_ALLOW_CODE = "--allow-code"


def written(
    source: str | None, options: Mapping[str, object], command: str, packages: Sequence[str] = ()
) -> RawRun:
    """Return the run of this name, before its options are applied. Raises ValueError if there is none.

    A run file that the user names may name code. The config.toml of a run folder may not: it imports only
    code of `packages`.
    """
    if source is None and "graph" not in options:
        raise ValueError(
            f"no run is given: use {command} debian, {command} run.toml, or {command} --graph FOLDER"
        )
    if source is None:
        return RawRun({}, COMMAND_LINE)
    if source in preset_names():
        return preset(source)
    if not Path(source).is_file():
        presets = ", ".join(preset_names())
        raise ValueError(f"{source}: no such file; give a run.toml, or a preset: {presets}")
    return replace(read_toml(Path(source)), permission=permission_of(Path(source), packages))


def permission_of(file: Path, packages: Sequence[str]) -> Permission:
    """Return the permission to import code for a run file: of any package, but not for a run folder's."""
    is_of_folder = file.name == CONFIG and is_run_folder(file.parent)
    return Permission(tuple(packages)) if is_of_folder else ANY_NAMED


def named_run_type(words: Sequence[str]) -> type[RunConfig]:
    """Return the class of the run in the arguments of a command, before they are parsed."""
    paths = {f"--{path.rpartition('.')[2]}": f"{path}.kind" for path in FAMILIES}
    kinds = {paths[name]: value for name, value in options_in(words) if name in paths}
    packages = [value for name, value in options_in(words) if name == _ALLOW_CODE]
    is_run = [word for word in positionals(words) if word in preset_names() or Path(word).is_file()]
    raw = written(is_run[0], {}, "", packages) if is_run else RawRun({}, COMMAND_LINE)
    return run_type_of(with_options(raw, kinds))


def positionals(words: Sequence[str]) -> list[str]:
    """Return the words that are neither options nor their values; an unknown option has a value."""
    names = [entry.option for entry in run_fields() if entry.kind is bool]
    flags = {*names, *(f"--no-{name[2:]}" for name in names), "--json", "--oversubscribe", "--help", "-h"}
    before = ["", *words]
    takes_value = [word.startswith("--") and "=" not in word and word not in flags for word in before]
    return [
        word
        for word, is_value in zip(words, takes_value, strict=False)
        if not is_value and not word.startswith("-")
    ]


def options_in(words: Sequence[str]) -> list[tuple[str, str]]:
    """Return names and values of the options, as `--name value` and as `--name=value`."""
    found = []
    for word, after in zip(words, [*words[1:], ""], strict=False):
        name, is_assigned, value = word.partition("=")
        if name.startswith("--"):
            found.append((name, value if is_assigned else after))
    return found
