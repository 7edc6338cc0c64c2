"""The work of `khop compare`. Does not import torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from khop.cli.next_steps import say_next
from khop.cli.runs import duration, facts
from khop.cli.terminal import say, table_console
from khop.reporting.differences import differences
from khop.reporting.run_summary import RunSummary, run_summary, seconds_of

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
        print(json.dumps(outcome))
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
    """Return the mean seconds of an epoch, in all and in training, without its evaluation."""
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
