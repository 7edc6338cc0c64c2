"""Run folders: created without overwriting an existing one, and reopened to resume."""

from __future__ import annotations

from pathlib import Path

import khop
from khop.graph.atomic import refuse_dangling
from khop.graph.layout import owner_of
from khop.graph.remote import with_urls
from khop.run.check import to_toml
from khop.run.read import CHECKPOINTS as CHECKPOINTS
from khop.run.read import CONFIG, DIGEST, digest_of
from khop.run.values import RunConfig

RUNS = Path("runs")
CURVE, METRICS = "curve.png", "metrics.jsonl"
TENSORBOARD = "tensorboard"
LAUNCH = "launch.txt"  # the launcher's run id, to find the folder again after a restart


def graph_name(config: RunConfig) -> str:
    """Return the name of a run's graph; a snapshot has the name of its graph."""
    path = Path(config.graph)
    return (owner_of(path) or path).name


def new_run_folder(config: RunConfig, among: Path = RUNS) -> Path:
    """Return an empty folder: the requested one, or the first free runs/<graph>-<n>."""
    if config.out is None:
        return _first_free(among / graph_name(config))
    folder = Path(config.out)
    refuse_dangling(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"out is {config.out!r}: is a file; name another folder")
    if folder.is_dir() and any(folder.iterdir()):
        raise ValueError(
            f"out is {config.out!r}: the folder is not empty; name another, "
            "or leave it out for a new one under runs/"
        )
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def restarted_folder(config: RunConfig, run_id: str) -> Path | None:
    """Return the folder created by an earlier attempt of a launcher's run, or None."""
    if config.out is not None:
        mark = Path(config.out) / LAUNCH
        return mark.parent if mark.is_file() and mark.read_text() == run_id else None
    stem = RUNS / graph_name(config)
    ours = [mark.parent for mark in stem.parent.glob(f"{stem.name}-*/{LAUNCH}") if mark.read_text() == run_id]
    return max(ours, key=lambda folder: folder.stat().st_ctime, default=None)


def _first_free(stem: Path) -> Path:
    number = 1
    while True:
        folder = stem.with_name(f"{stem.name}-{number}")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:  # used by an older run, or by one that starts at the same time
            number += 1


def write_config(folder: Path, config: RunConfig) -> None:
    """Write all settings of a run to its folder.

    `khop train FOLDER/config.toml` repeats the run in a new folder.
    """
    head = f"# khop {khop.__version__}; khop train on this file repeats the run\n"
    # Another machine has other mirrors of object stores.
    body = with_urls(to_toml(config.model_copy(update={"out": None}))).encode()
    write_whole(folder / CONFIG, head.encode() + DIGEST + digest_of(body) + b"\n" + body)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically: the old content is kept until the new one is complete."""
    beside = path.with_name(f".{path.name}.new")
    try:
        beside.write_bytes(content)
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
