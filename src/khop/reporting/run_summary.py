"""A run folder in short: settings, epochs, scores, state."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from khop.config.read import read_toml
from khop.config.saved_run import CHECKPOINTS, CONFIG
from khop.reporting.scores import Record, baselines_of, number, plain_scores
from khop.training.checkpoint_files import STATE
from khop.training.replace_folder import existing_folder
from khop.training.run_log import RunLog

METRICS, STEPS, ENVIRONMENT, LAST = "metrics.jsonl", "steps.jsonl", "environment.json", "last"


class RunState(StrEnum):
    """State of a run."""

    FINISHED = "finished"  # no epoch is left to train
    RESUMABLE = "resumable"  # it runs, or was stopped: khop train --resume continues it
    STARTED = "started"  # it runs, or was stopped before its first checkpoint


@dataclass(frozen=True)
class RunSummary:
    """Contents of a run folder."""

    folder: Path
    settings: Mapping[str, Any]  # as config.toml has them
    records: tuple[Record, ...]  # of finished epochs
    training: Mapping[str, Any]  # the state in checkpoints/last; empty without a checkpoint
    environment: Mapping[str, Any]  # as environment.json has it; empty for runs of earlier versions
    changed_at: float  # the last write of its logs, in seconds since 1970

    @property
    def graph(self) -> str:
        """The name of the graph: the last part of its path."""
        return Path(str(self.settings.get("graph", ""))).name

    @property
    def model(self) -> str:
        """The model in short."""
        table = self.settings.get("model", {})
        sizes = [str(table[name]) for name in ("layers", "hidden") if name in table]
        return " ".join([str(table.get("kind", "")), " x ".join(sizes)]).strip()

    @property
    def epochs_asked(self) -> int:
        """The epochs that the run is set to train."""
        return int(self.settings.get("training", {}).get("epochs", 0))

    @property
    def state(self) -> RunState:
        """The state of the run."""
        if not self.training:
            return RunState.STARTED
        patience = int(self.settings.get("training", {}).get("patience", 0))
        is_stale = 0 < patience <= int(self.training.get("stale", 0))
        is_over = int(self.training.get("epoch", 0)) >= self.epochs_asked or is_stale
        return RunState.FINISHED if is_over else RunState.RESUMABLE

    @cached_property
    def best(self) -> Record:
        """The record of the best epoch, without a checkpoint the last one; empty before the first epoch."""
        if not self.records:
            return {}
        epoch = int(self.training.get("best_epoch", len(self.records) - 1))
        return self.records[min(epoch, len(self.records) - 1)]

    @property
    def scores(self) -> dict[str, float]:
        """The scores of the best epoch, without baselines."""
        return plain_scores(self.best)

    @property
    def baselines(self) -> dict[str, dict[str, float]]:
        """By score its baselines: "test_accuracy" -> "majority" -> 0.3."""
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
    """Read a run folder. ValueError if it is none, or if its files are damaged."""
    if not (folder / CONFIG).is_file():
        raise ValueError(f"{folder}: not a run folder, it has no {CONFIG}; name one that khop train has made")
    last = existing_folder(folder / CHECKPOINTS / LAST) / STATE
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
