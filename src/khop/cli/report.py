"""Implementation of `khop report`."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch
from rich.console import Console
from rich.filesize import decimal

import khop
from khop.api.open_graph import names_of
from khop.cli.arguments import recorded_run
from khop.cli.lines import tell
from khop.cli.rank_runs import run_of_rank
from khop.cli.run_folder import write_whole
from khop.cli.stores import published_files
from khop.cli.terminal import counting_bar, say, say_next
from khop.cli.train import sentences
from khop.graph.atomic import refuse_dangling
from khop.run.bottleneck import Machine, bottleneck
from khop.run.build import Run
from khop.run.check import checked, on_this_machine
from khop.run.read import CHECKPOINTS, RawRun, with_options
from khop.run.reporting.examined import Examined, examined
from khop.run.reporting.page import ReportedRun, page
from khop.run.reporting.run_summary import STEPS, RunSummary, run_summary
from khop.run.reporting.time_spent import TimeSpent, time_spent
from khop.training.run_log import RunLog

_BEST = "best"


@dataclass(frozen=True)
class ReportCall:
    """The arguments of one call of the command."""

    folders: tuple[Path, ...]
    out: Path
    device: str | None
    evaluate: bool
    packages: tuple[str, ...]


def report(request: ReportCall) -> None:
    """Write the page."""
    console = Console()
    refuse_dangling(request.out)
    if request.out.is_dir():
        raise ValueError(
            f"--out {request.out}: is a folder; name a file, such as {request.out / 'report.html'}"
        )
    summaries = [run_summary(folder) for folder in request.folders]
    runs = [_reported(summary, request, console) for summary in summaries]
    content = page(runs, f"Written by khop {khop.__version__} on {date.today():%Y-%m-%d}.").encode()
    request.out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(request.out, content)
    published_files(request.out)
    say(console, f"report  {request.out} ({decimal(len(content))}); it opens in any browser, also offline")
    say_next(console, ("khop", "evaluate", str(request.folders[0]), "--predictions", "test.parquet"))


def _reported(summary: RunSummary, request: ReportCall, console: Console) -> ReportedRun:
    raw = recorded_run(summary.folder, request.packages)
    workers = _number(summary.settings.get("threads"), 1)
    time = time_spent(RunLog(summary.folder / STEPS).records(), workers)
    advice = () if time is None else _advice(time, summary, raw)
    return ReportedRun(str(summary.folder), summary, time, advice, _split(summary, raw, request, console))


def _advice(time: TimeSpent, summary: RunSummary, raw: RawRun) -> tuple[str, ...]:
    """Return the advice of `khop profile` on these times, without the load of the cores, which is unknown."""
    config = checked(raw)
    facts = summary.environment
    ranks = max(1, _number(facts.get("processes_here"), len(time.summary.ranks)))
    cores = max(1, _number(facts.get("cores"), config.compute_threads) // ranks)
    machine = Machine(cores, has_fast_bfloat16=facts.get("fast_bfloat16") is True)
    return sentences(bottleneck(time.summary, config, machine), config)


def _split(summary: RunSummary, raw: RawRun, request: ReportCall, console: Console) -> Examined | str:
    """Compute and examine the test split; return a sentence with the reason if this is impossible."""
    if not request.evaluate:
        return "The test split was not computed (--no-evaluate)."
    checkpoint = summary.folder / CHECKPOINTS / _BEST
    if not checkpoint.is_dir():
        return "The run has no best checkpoint yet."
    say(console, f"computing the test split of {summary.folder}")
    try:
        return _examined(raw, checkpoint, request, console)
    except (
        ValueError,
        OSError,
    ) as error:  # for example, the graph was moved; the rest of the report is still useful
        tell(f"{summary.folder}: the test split is left out: {error}")
        return f"The test split could not be computed: {error}"


def _examined(raw: RawRun, checkpoint: Path, request: ReportCall, console: Console) -> Examined | str:
    given = {} if request.device is None else {"device": request.device}
    chosen = on_this_machine(with_options(raw, given), tell)
    run: Run = run_of_rank(chosen, torch.device(checked(chosen).device), frozenset(), checkpoint)
    run.restore(checkpoint, tell, tuple(given))
    if "test" not in run.run_task.splits:
        return "The task of the run has no test split."
    with counting_bar("evaluating") as progress:
        evaluation = run.evaluated(("test",), progress, ())
    return examined(evaluation.predictions, names_of(run.graph), "test")


def _number(value: object, default: int) -> int:
    with suppress(TypeError, ValueError):
        return int(value) if value else default  # type: ignore[call-overload]
    return default
