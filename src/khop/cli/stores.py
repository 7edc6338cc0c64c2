"""Object-store paths in the arguments of a command and in the settings of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import typer

from khop.cli.lines import tell
from khop.graph.atomic import ProgressCallback
from khop.graph.remote import (
    Location,
    StoreError,
    is_url,
    kept,
    matches,
    publish,
    publish_files,
    staged,
    target,
)
from khop.run.read import RawRun

_OUTPUTS = {"--out", "-o", "--predictions"}
_USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]  # click's UsageError
# Other commands change a graph folder, or start servers over one.
_COMMANDS = {
    "train", "evaluate", "infer", "predict", "recommend", "profile", "import", "info", "verify", "lookup",
    "init", "runs", "compare", "report",
}  # fmt: skip


def with_mirrors(words: Sequence[str], out: Callable[[Sequence[str]], Path | None]) -> list[str]:
    """Return the words of a command with local paths instead of URLs of object stores.

    Files and folders to read are staged first, with progress. `out` returns the folder to write of the
    arguments of khop import, as ImportCommand.out does.
    """
    found, urls = list(words), dict[int, tuple[str, str]]()
    for at, word in enumerate(words):
        name, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        if not is_url(value):
            continue
        url = Location.of(value).url  # never print one with credentials
        if at == 0:
            raise ValueError(f"khop {url}: is not a command; to train on a graph: khop train --graph {url}")
        if words[0] not in _COMMANDS:
            raise ValueError(
                f"khop {words[0]} {url}: reads and writes local folders alone; copy the folder to this "
                "machine, by the tool of the store"
            )
        urls[at] = f"{name}{equals}", value
    if urls and words[0] == "import":
        return _mirrors_of_import(found, urls, out)
    for at, (option, url) in urls.items():
        is_output = (option.rstrip("=") or words[at - 1]) in _OUTPUTS
        found[at] = f"{option}{_mirror(url, is_output=is_output)}"
    return found


def _mirrors_of_import(
    words: list[str], urls: Mapping[int, tuple[str, str]], out: Callable[[Sequence[str]], Path | None]
) -> list[str]:
    """Stage the files that khop import reads, which determine its options, then the other arguments."""
    others: list[str] = []
    for at, (option, url) in urls.items():
        location = Location.of(url)
        if "" in location.opened().files():
            words[at] = f"{option}{_mirror(url, is_output=False)}"
        else:
            words[at] = f"{option}{location.mirror}"
            others.append(url)
    try:
        written = out(words[1:])
    except (ValueError, _USAGE_ERROR):  # the command reports it
        return words
    for url in others:
        _mirror(url, is_output=Location.of(url).mirror == written)
    return words


def _mirror(url: str, *, is_output: bool) -> Path:
    from khop.cli.terminal import bytes_bar

    with bytes_bar(f"reading {Location.of(url).url}") as notice:
        return target(url, notice) if is_output else staged(url, notice)


def stage_tables(spec: Path) -> None:
    """Stage the files that a spec of tables names by URLs, so that their progress is shown."""
    from khop.cli.terminal import bytes_bar
    from khop.run.read import read_toml

    with bytes_bar() as notice:
        _stage_all(read_toml(spec).values, notice)


def _stage_all(value: object, notice: ProgressCallback) -> None:
    if isinstance(value, str) and is_url(value):
        matches(value, notice)
    elif isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            _stage_all(inner, notice)


def with_staged(raw: RawRun) -> RawRun:
    """Return a run whose settings name local paths instead of URLs; `out` is written, the others are read."""
    return replace(raw, values={name: _local(value, name) for name, value in raw.values.items()})


def _local(value: object, name: str) -> object:
    if isinstance(value, Mapping):
        return {inner: _local(of_inner, inner) for inner, of_inner in value.items()}
    return str(_mirror(str(value), is_output=name == "out")) if is_url(value) else value


def published(*folders: Path) -> None:
    """Upload the changed files of folders in an object store, with progress; other folders need nothing.

    If the store refuses one, it and those after it go to the current folder, and the error says so.
    """
    from khop.cli.terminal import bytes_bar

    with bytes_bar() as notice:
        for at, folder in enumerate(folders):
            try:
                publish(folder, notice)
            except StoreError as error:
                raise kept(folders[at:], error) from None


@contextmanager
def publishing(run: Path) -> Iterator[None]:
    """Publish a run folder after the block, also if the block is stopped or fails.

    A run that was stopped stays in the cache if the store refuses it, and is published when it is resumed.
    """
    from khop.cli.terminal import bytes_bar

    try:
        yield
    except BaseException:
        with bytes_bar() as notice:
            try:
                publish(run, notice)
            except (OSError, ValueError) as problem:  # the error of the block is the one to report
                tell(f"{problem}. The run stays in the cache, and is uploaded when it is resumed")
        raise
    published(run)


def published_files(*files: Path | None) -> None:
    """Upload new files of an object store, with progress; other files need nothing."""
    from khop.cli.terminal import bytes_bar

    with bytes_bar() as notice:
        publish_files([file for file in files if file is not None], notice)
