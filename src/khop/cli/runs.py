"""Implementation of `khop runs` and `khop compare`.

This module does not import torch.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from khop.cli.lines import tell
from khop.cli.terminal import fitting, say, say_next, table_console
from khop.graph.remote import with_urls
from khop.run.reporting.run_summary import (
    RunState,
    RunSummary,
    differences,
    find_runs,
    run_summary,
    seconds_of,
)

_LEAST = ("model", "graph", "time", "age")  # columns that are left out on a narrow terminal, in this order


def print_runs(folder: Path, as_json: bool) -> None:
    """Print the runs below a folder as a table or one JSON object. Damaged runs are reported on stderr."""
    found = readable(list(find_runs(folder)))
    if as_json:
        print(with_urls(json.dumps({"folder": str(folder), "runs": [facts(run) for run in found]})))
        return
    console = table_console()
    if not found:
        say(console, f"{folder}: no runs yet")
        say_next(console, ("khop", "train", "debian"))
        return
    console.print(fitting(console, _table(found, time.time()), *_LEAST))
    say_next(console, *_next_commands(found))


def readable(folders: Sequence[Path]) -> list[RunSummary]:
    """Read runs; a damaged run folder is reported on stderr and skipped."""
    found = []
    for path in folders:
        try:
            found.append(run_summary(path))
        except ValueError as error:
            tell(f"{error}; the run is left out")
    return found


def facts(run: RunSummary) -> dict[str, object]:
    """Return the summary of a run as JSON."""
    return {
        "run": str(run.folder),
        "state": run.state.value,
        "graph": run.settings.get("graph"),
        "model": run.model,
        "epochs": len(run.records),
        "epochs_asked": run.epochs_asked,
        "metric": run.metric,
        "scores": run.scores,
        "baselines": run.baselines,
        "seconds": round(run.seconds, 2),
        "age_s": round(run.age_s(), 1),
    }


def duration(seconds: float) -> str:
    """Format a duration in its largest unit and the next one."""
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    for (name, size), (smaller, of_smaller) in pairwise(units):
        if seconds >= size:
            rest = int(seconds % size / of_smaller)
            return f"{int(seconds / size)} {name}" + (f" {rest} {smaller}" if rest else "")
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def scored(run: RunSummary, split: str) -> str:
    """Format the score of a split with its baselines: "accuracy 0.81 (majority 0.32)"."""
    name = f"{split}_{run.metric}"
    if not run.metric or name not in run.scores:
        return ""
    beside = ", ".join(f"{word} {value:.3g}" for word, value in run.baselines.get(name, {}).items())
    return f"{run.metric.replace('_', ' ')} {run.scores[name]:.4f}" + (f" ({beside})" if beside else "")


def _table(runs: Sequence[RunSummary], now: float) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    right = {"epochs", "time", "age"}
    for name in ("run", "graph", "model", "epochs", "val", "test", "time", "age", "state"):
        table.add_column(name, justify="right" if name in right else "left", no_wrap=True)
    for run in runs:
        epochs = f"{len(run.records)}/{run.epochs_asked}"
        scores = scored(run, "val"), scored(run, "test")
        times = duration(run.seconds), duration(run.age_s(now))
        table.add_row(str(run.folder), run.graph, run.model, epochs, *scores, *times, run.state.value)
    return table


def _next_commands(runs: Sequence[RunSummary]) -> list[tuple[str, ...]]:
    stopped = next((run for run in runs if run.state is RunState.RESUMABLE), None)
    commands: list[tuple[str, ...]] = (
        [] if stopped is None else [("khop", "train", "--resume", str(stopped.folder))]
    )
    scored_runs = [str(run.folder) for run in runs if run.scores]
    if len(scored_runs) > 1:
        commands.append(("khop", "compare", *scored_runs[-2:]))
    return commands or [("khop", "evaluate", str(runs[-1].folder), "--split", "all")]


_UNSET = "-"


def print_comparison(folders: Sequence[Path], as_json: bool) -> None:
    """Print runs side by side, as tables or as one JSON object."""
    if len(folders) < 2:
        raise ValueError(f"{folders[0]}: is the only run: give two or more run folders")
    runs = [run_summary(folder) for folder in folders]
    settings = differences([run.settings for run in runs])
    environments = differences([run.environment for run in runs])
    if as_json:
        outcome = {
            "runs": [{**facts(run), **_times(run), "environment": run.environment} for run in runs],
            "settings": settings,
        }
        print(with_urls(json.dumps(outcome)))
        return
    console = table_console()
    _print(console, "scores of the best epoch", runs, _score_rows(runs))
    _print(console, "time", runs, _time_rows(runs))
    _print(console, "environment: values that differ", runs, environments)
    _print(console, "settings: values that differ", runs, settings)
    say_next(console, ("khop", "evaluate", str(folders[-1]), "--split", "all"))


def _score_rows(runs: Sequence[RunSummary]) -> dict[str, tuple[object, ...]]:
    names = dict.fromkeys(name for run in runs for name in run.scores)
    rows: dict[str, tuple[object, ...]] = {}
    for name in names:
        rows[name.replace("_", " ")] = tuple(run.scores.get(name) for run in runs)
        words = dict.fromkeys(word for run in runs for word in run.baselines.get(name, {}))
        for word in words:
            rows[f"  {word}"] = tuple(run.baselines.get(name, {}).get(word) for run in runs)
    return rows


def _time_rows(runs: Sequence[RunSummary]) -> dict[str, tuple[object, ...]]:
    epochs = tuple(f"{len(run.records)} of {run.epochs_asked}, {run.state.value}" for run in runs)
    rows: dict[str, tuple[object, ...]] = {"epochs": epochs}
    rows["total"] = tuple(duration(run.seconds) for run in runs)
    rows["per epoch"] = tuple(duration(_times(run)["seconds_per_epoch"]) for run in runs)
    peaks = tuple(run.environment.get("peak_memory_bytes") for run in runs)
    if any(peaks):
        rows["peak memory"] = tuple(decimal(peak) if isinstance(peak, int) else None for peak in peaks)
    return rows


def _times(run: RunSummary) -> dict[str, float]:
    """Return the mean seconds per epoch: in total, and of training without evaluation."""
    epochs = [seconds_of(record) for record in run.records]
    count = max(1, len(epochs))
    evaluating = sum(epoch.get("evaluating", 0.0) for epoch in epochs)
    return {
        "seconds_per_epoch": round(run.seconds / count, 4),
        "training_seconds_per_epoch": round((run.seconds - evaluating) / count, 4),
    }


def _print(
    console: Console, title: str, runs: Sequence[RunSummary], rows: Mapping[str, tuple[object, ...]]
) -> None:
    """Print a table with a column per run; a sentence if there are no rows."""
    if not rows:
        say(console, f"{title}: none", "")
        return
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("", overflow="fold")
    for run in runs:
        table.add_column(str(run.folder), overflow="fold")
    for name, values in rows.items():
        table.add_row(name, *(_shown(value) for value in values))
    console.print(table)


def _shown(value: object) -> str:
    match value:
        case None:
            return _UNSET
        case float():
            return f"{value:.6g}"
        case bool():
            return str(value).lower()
        case list() | tuple():
            return ",".join(map(_shown, value))
    return str(value)
