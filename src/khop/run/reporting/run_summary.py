"""Summary of a run folder: settings, epochs, scores, state and environment."""

from __future__ import annotations

import json
import os
import platform
import resource
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from importlib import metadata
from itertools import product
from pathlib import Path
from typing import Any

import khop
from khop.run.read import CHECKPOINTS, CONFIG, read_toml
from khop.training.replace_folder import STATE, pushed_folders
from khop.training.run_log import EPOCHS, RunLog

Record = Mapping[str, object]  # one line of metrics.jsonl
SCORES = ("train", "val", "test")
BASELINES = (
    "majority",
    "mean",
    "popularity",
    "own-features",
    "label-propagation",
)  # of khop.training.tasks, without torch


def number(value: object) -> float:
    """Return a value of a record as a number."""
    assert isinstance(value, int | float), value
    return value


def epochs_of(record: Record) -> float:
    """Return the number of epochs trained before a record; with a fraction within an epoch."""
    return number(record.get(EPOCHS, number(record["epoch"]) + 1))


def scores_of(record: Record) -> dict[str, float]:
    """Return the scores of a record, such as "val_accuracy" -> 0.8, in the order train, val, test."""
    named = [(name, split) for split in SCORES for name in record if name.startswith(f"{split}_")]
    return {name: number(record[name]) for name, _ in named}


def _chosen_by(record: Record) -> float | None:
    """Return the score that selects the best record: the first score on val."""
    return next((score for name, score in scores_of(record).items() if name.startswith("val_")), None)


def baselines_of(record: Record) -> dict[str, dict[str, str]]:
    """Return for each score the keys and names of its baselines: "val_majority_accuracy", "majority"."""
    found: dict[str, dict[str, str]] = {}
    for split, baseline in product(SCORES, BASELINES):
        prefix = f"{split}_{baseline.replace('-', '_')}_"
        for name in record:
            if name.startswith(prefix):
                score = f"{split}_{name.removeprefix(prefix)}"
                found.setdefault(score, {})[name] = baseline.replace("-", " ")
    return found


def plain_scores(record: Record) -> dict[str, float]:
    """Return the scores of a record without the baselines."""
    hidden = {name for of_score in baselines_of(record).values() for name in of_score}
    return {name: value for name, value in scores_of(record).items() if name not in hidden}


METRICS, STEPS, ENVIRONMENT, LAST = "metrics.jsonl", "steps.jsonl", "environment.json", "last"


class RunState(StrEnum):
    """State of a run."""

    FINISHED = "finished"  # no epoch is left to train
    RESUMABLE = "resumable"  # running, or stopped: khop train --resume continues it
    STARTED = "started"  # running, or stopped before its first checkpoint


@dataclass(frozen=True)
class RunSummary:
    """Contents of a run folder."""

    folder: Path
    settings: Mapping[str, Any]  # in the form of config.toml
    records: tuple[Record, ...]  # of finished epochs
    training: Mapping[str, Any]  # the state in checkpoints/last; empty without a checkpoint
    environment: Mapping[str, Any]  # in the form of environment.json; empty for runs of earlier versions
    changed_at: float  # time of the last write to its logs, in seconds since 1970

    @property
    def graph(self) -> str:
        """The name of the graph: the last part of its path."""
        return Path(str(self.settings.get("graph", ""))).name

    @property
    def model(self) -> str:
        """Short description of the model."""
        table = self.settings.get("model", {})
        sizes = [str(table[name]) for name in ("layers", "hidden") if name in table]
        return " ".join([str(table.get("kind", "")), " x ".join(sizes)]).strip()

    @property
    def epochs_asked(self) -> int:
        """The configured number of epochs."""
        return int(self.settings.get("training", {}).get("epochs", 0))

    @property
    def state(self) -> RunState:
        """The state of the run."""
        if not self.training:
            return RunState.STARTED
        patience = int(self.settings.get("training", {}).get("patience", 0))
        is_stale = 0 < patience <= int(self.training.get("stale", 0))
        is_finished = is_stale or bool(self.training.get("is_finished"))
        is_over = int(self.training.get("epoch", 0)) >= self.epochs_asked or is_finished
        return RunState.FINISHED if is_over else RunState.RESUMABLE

    @property
    def evaluated(self) -> Sequence[Record]:
        """Evaluations within epochs up to the last checkpoint, from steps.jsonl, then the epochs."""
        return (*self.training.get("evaluations", ()), *self.records)

    @cached_property
    def best(self) -> Record:
        """The record of the best evaluation, or of the last without a checkpoint; empty before the first."""
        if not self.evaluated:
            return {}
        epoch = int(self.training.get("best_epoch", len(self.records) - 1))
        of_epoch = [each for each in self.evaluated if each["epoch"] == epoch]
        score = self.training.get("best_score")
        chosen = (each for each in of_epoch if score is not None and _chosen_by(each) == score)
        return next(chosen, (of_epoch or self.evaluated)[-1])

    @property
    def scores(self) -> dict[str, float]:
        """The scores of the best epoch, without baselines."""
        return plain_scores(self.best)

    @property
    def baselines(self) -> dict[str, dict[str, float]]:
        """The baselines of each score: "test_accuracy" -> "majority" -> 0.3."""
        found = baselines_of(self.best).items()
        return {
            score: {word: number(self.best[name]) for name, word in words.items()} for score, words in found
        }

    @property
    def metric(self) -> str:
        """The metric that selects the best epoch; empty before the first evaluation."""
        first = next((name for name in self.scores if name.startswith("val_")), "")
        return first.removeprefix("val_")

    @property
    def seconds(self) -> float:
        """Seconds of all epochs."""
        return sum(seconds_of(record).get("total", 0.0) for record in self.records)

    def age_s(self, now: float | None = None) -> float:
        """Return the seconds since the last write."""
        return max(0.0, (time.time() if now is None else now) - self.changed_at)


def seconds_of(record: Record) -> Mapping[str, float]:
    """Return the seconds of an epoch by stage."""
    match record.get("seconds"):
        case Mapping() as found:
            return found
    return {}


def run_summary(folder: Path) -> RunSummary:
    """Read a run folder. Raises ValueError if it is not a run folder, or if its files are damaged."""
    if not (folder / CONFIG).is_file():
        raise ValueError(
            f"{folder}: not a run folder, it has no {CONFIG}; give a folder written by khop train"
        )
    last = next(iter(pushed_folders(folder / CHECKPOINTS / LAST)), folder) / STATE
    written = [file for name in (METRICS, STEPS, CONFIG) if (file := folder / name).is_file()]
    return RunSummary(
        folder,
        read_toml(folder / CONFIG).values,
        tuple(RunLog(folder / METRICS).records()),
        _json(last).get("training", {}),
        _json(folder / ENVIRONMENT),
        max(file.stat().st_mtime for file in written),
    )


def _json(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise ValueError(f"{path}: cut short or damaged; restore the file, or train again") from None
    return found if isinstance(found, dict) else {}


_LOGS = (
    METRICS,
    "steps.jsonl",
    "checkpoints",
)  # each run folder contains one of them, and no other folder does


def find_runs(folder: Path) -> Iterator[Path]:
    """Yield the run folders in and below a folder, by name. Hidden folders and links are skipped.

    ValueError if the folder does not exist.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder; give a folder with runs of khop train")
    for path, folders, files in os.walk(folder):
        folders.sort()
        if CONFIG in files and any(name in files or name in folders for name in _LOGS):
            folders.clear()  # a run contains no other runs
            if METRICS in files or "checkpoints" in os.listdir(path):
                yield Path(path)
        folders[:] = [name for name in folders if not name.startswith(".")]


def differences(tables: Sequence[Mapping[str, object]]) -> dict[str, tuple[object, ...]]:
    """Return the values that differ between tables, by dotted path; None where a table lacks one."""
    flat = [dict(flattened(table)) for table in tables]
    paths = dict.fromkeys(path for table in flat for path in table)
    rows = {path: tuple(table.get(path) for table in flat) for path in paths}
    return {path: row for path, row in rows.items() if any(value != row[0] for value in row)}


def flattened(table: Mapping[str, object], prefix: str = "") -> list[tuple[str, object]]:
    """List the values of nested tables by dotted path."""
    found: list[tuple[str, object]] = []
    for name, value in table.items():
        match value:
            case Mapping():
                found += flattened(value, f"{prefix}{name}.")
            case _:
                found.append((prefix + name, value))
    return found


CPU_FACTS = Path("/proc/cpuinfo")
_PACKAGES = ("torch", "numpy")


def environment(device: str, cores: int) -> dict[str, object]:
    """Return versions and the machine of this process; `device` is the name of its GPU, or "cpu"."""
    return {
        "khop": khop.__version__,
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in _PACKAGES},
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": processor(),
        "cores": cores,
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "device": device,
    }


def processor(facts: Path = CPU_FACTS) -> str:
    """Return the name of the processor, or its architecture if the system does not report the name."""
    try:
        lines = facts.read_text().splitlines()
    except OSError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model")))
    return next(names, platform.machine())


def peak_memory_bytes() -> int:
    """Return the peak memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
