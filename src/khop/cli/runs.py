"""The work of `khop runs`. Does not import torch."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table

from khop.cli.lines import tell
from khop.cli.next_steps import say_next
from khop.cli.terminal import fitting, say, table_console
from khop.reporting.find_runs import find_runs
from khop.reporting.run_summary import RunState, RunSummary, run_summary

_LEAST = ("model", "graph", "time", "age")  # columns that are left out on a narrow terminal, in this order


def print_runs(folder: Path, as_json: bool) -> None:
    """Print the runs below a folder, as a table or as one JSON object. A damaged run is named on stderr."""
    found = readable(list(find_runs(folder)))
    if as_json:
        print(json.dumps({"folder": str(folder), "runs": [facts(run) for run in found]}))
        return
    console = table_console()
    if not found:
        say(console, f"{folder}: no runs yet")
        say_next(console, ("khop", "train", "debian"))
        return
    console.print(fitting(console, _table(found, time.time()), *_LEAST))
    say_next(console, *_next_commands(found))


def readable(folders: Sequence[Path]) -> list[RunSummary]:
    """Read runs; a folder with damaged files is named on stderr and left out."""
    found = []
    for path in folders:
        try:
            found.append(run_summary(path))
        except ValueError as error:
            tell(f"{error}; the run is left out")
    return found


def facts(run: RunSummary) -> dict[str, object]:
    """Return the facts of a run as JSON."""
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
    """Format a duration for people: its largest unit, and the next one."""
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
