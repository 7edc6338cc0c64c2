"""Positional arguments of commands: a run (a file, a preset, or options alone) and a graph folder."""

from __future__ import annotations

import difflib
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from khop.cli.lines import tell
from khop.cli.stores import with_staged
from khop.components import ANY_NAMED, FAMILIES, Permission
from khop.data.importers import BUILTIN_NAMES, builtin_path
from khop.graph.layout import BOOK, MANIFEST, SNAPSHOT_RECORD
from khop.run.read import (
    COMMAND_LINE,
    CONFIG,
    RawRun,
    preset,
    preset_names,
    read_toml,
    saved_run,
    with_options,
)
from khop.user_cache import cache_folder

_ALLOW_CODE = "--allow-code"


def written(
    source: str | None, options: Mapping[str, object], command: str, packages: Sequence[str] = ()
) -> RawRun:
    """Return the run of this name, before its options are applied. Raises ValueError if there is none.

    A run file that the user names may name code. The config.toml of a run folder may not: it imports only
    code of `packages`.
    """
    permission = Permission(tuple(packages))
    if source is None and "graph" not in options:
        raise ValueError(
            f"no run is given: use {command} debian, {command} run.toml, or {command} --graph FOLDER"
        )
    if source is None:
        return RawRun({}, COMMAND_LINE)
    if source in preset_names():
        return preset(source)
    if is_graph_folder(Path(source)):
        return RawRun({"graph": source}, COMMAND_LINE)
    if not Path(source).is_file():
        raise ValueError(f"{source}: no such file; {_near(source)}")
    is_of_folder = Path(source).name == CONFIG
    return replace(with_staged(read_toml(Path(source))), permission=permission if is_of_folder else ANY_NAMED)


def _near(source: str) -> str:
    """Return a hint that names a preset or a run file with a similar name."""
    by_stem = {
        name.removesuffix(".toml"): name for name in (*map(str, Path().glob("*.toml")), *preset_names())
    }
    close = difflib.get_close_matches(source.removesuffix(".toml"), by_stem, n=1)
    if close:
        return f"did you mean {by_stem[close[0]]}?"
    return f"give a run.toml, a graph folder, or a preset: {', '.join(preset_names())}"


def is_graph_folder(path: Path) -> bool:
    """Return whether a folder contains a graph or a partitioned graph."""
    return any((path / name).is_file() for name in (MANIFEST, BOOK, SNAPSHOT_RECORD))


def read_run(folder: Path, packages: Sequence[str], options: Mapping[str, object]) -> RawRun:
    """Read the run in `folder` as `recorded_run` does, and apply options.

    If this machine does not have the GPU of the run, and no option names a device, another one is used, and a
    line on stderr says so.
    """
    from khop.run.check import on_this_machine

    return on_this_machine(with_options(recorded_run(folder, packages), options), tell)


def recorded_run(folder: Path, packages: Sequence[str]) -> RawRun:
    """Read the run in `folder`, which may name code of `packages`. ValueError if it is not a run folder.

    If config.toml was changed after khop wrote it, a line on stderr says so. Settings that determine the
    results are compared with the checkpoint; all others are used unchanged.
    """
    return with_staged(saved_run(folder, packages, tell))


@dataclass(frozen=True)
class CommandWords:
    """The arguments of a command before parsing, while the options of its components are unknown."""

    options: tuple[tuple[str, str], ...]  # names, and values or the following arguments
    operands: tuple[str, ...]  # all other arguments; last those that may be values of unknown options
    known: Mapping[str, bool]  # options of the command itself -> whether they take a value

    @classmethod
    def of(cls, words: Sequence[str], known: Mapping[str, bool]) -> CommandWords:
        """Divide the arguments of a command with these options."""
        options: list[tuple[str, str]] = []
        sure: list[str] = []
        unsure: list[str] = []
        left = deque(words)
        while left:
            word = left.popleft()
            if word == "--":
                sure += left
                break
            if not word.startswith("-"):
                sure.append(word)
                continue
            name, is_assigned, value = word.partition("=")
            after = left[0] if left else ""
            options.append((name, value if is_assigned else after))
            takes_value = False if is_assigned or not left else known.get(name)
            if takes_value:
                left.popleft()
            elif takes_value is None and not after.startswith("-"):
                unsure.append(left.popleft())
        return cls(tuple(options), (*sure, *unsure), known)

    def values(self, name: str) -> list[str]:
        """Return the values of an option, in order."""
        return [value for each, value in self.options if each == name]


def named_run(words: CommandWords, file_of: Callable[[str], Path] = Path) -> RawRun:
    """Return the run that unparsed arguments name, with the kinds of its components.

    `file_of` returns the run file of an operand.
    """
    paths = {f"--{path.rpartition('.')[2]}": f"{path}.kind" for path in FAMILIES}
    kinds = {paths[name]: value for name, value in words.options if name in paths}
    for word in words.operands:
        if word in preset_names():
            return with_options(preset(word), kinds)
        if file_of(word).is_file():
            return with_options(written(str(file_of(word)), {}, "", words.values(_ALLOW_CODE)), kinds)
    return with_options(RawRun({}, COMMAND_LINE), kinds)


GraphArgument = Annotated[str, typer.Argument(help="Graph folder, or name of a built-in graph.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]


@dataclass(frozen=True)
class Report:
    """Option of a command for its output."""

    as_json: AsJson = False


def folder_of(graph: str) -> Path:
    """Return the folder of a graph; a built-in graph is unpacked first."""
    if graph not in BUILTIN_NAMES:
        close = difflib.get_close_matches(graph, BUILTIN_NAMES, n=1)
        if close and os.sep not in graph and not Path(graph).exists():
            raise ValueError(f"{graph}: no such folder; did you mean {close[0]}?")
        return Path(graph)
    unpacked = builtin_path(graph, cache_folder())
    if unpacked.exists():
        return unpacked
    from khop.data.builtin import builtin_folder

    return builtin_folder(graph, cache_folder())
