"""The sections of a report, each a function from runs to HTML; an empty text leaves it out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape

from khop.graph.progress import in_bytes
from khop.reporting.differences import differences, flattened
from khop.reporting.html import paragraph, scrolled, table
from khop.reporting.line_chart import Points, line_chart
from khop.reporting.reported_run import ReportedRun
from khop.reporting.run_summary import seconds_of
from khop.reporting.scores import Record, number
from khop.reporting.split_charts import split_chart
from khop.reporting.time_charts import time_charts
from khop.reporting.traffic_table import traffic_section
from khop.training.step_clock import WITHIN

Runs = Sequence[ReportedRun]
_NONE = "–"


def _scores(runs: Runs) -> str:
    names = list(dict.fromkeys(name for run in runs for name in run.summary.scores))
    if not names:
        return paragraph("No epoch has been evaluated yet.")
    heading = ["run", "best epoch", *(name.replace("_", " ") for name in names), "epochs", "time", "state"]
    rows = []
    for run in runs:
        summary = run.summary
        best = f"{number(summary.best['epoch']) + 1:.0f}" if summary.best else _NONE
        cells = [_score(run, name) for name in names]
        epochs = f"{len(summary.records)} of {summary.epochs_asked}"
        rows.append([run.name, best, *cells, epochs, f"{summary.seconds:.1f} s", summary.state.value])
    note = "Of the best epoch by the validation split; in brackets, scores of predictions without the graph."
    return table("Scores", heading, rows) + paragraph(note, "faint")


def _score(run: ReportedRun, name: str) -> str:
    if name not in run.summary.scores:
        return _NONE
    baselines = run.summary.baselines.get(name, {}).items()
    beside = ", ".join(f"{word} {value:.4f}" for word, value in baselines)
    return f"{run.summary.scores[name]:.4f}" + (f" ({beside})" if beside else "")


def _curves(runs: Runs) -> str:
    names = [run.name for run in runs]
    scores = dict.fromkeys(name for run in runs for name in run.summary.scores)
    charts = [line_chart("training loss", _by_epoch(runs, "loss"), names)]
    charts += [line_chart(name.replace("_", " "), _by_epoch(runs, name), names) for name in scores]
    charts.append(line_chart("seconds per epoch", _seconds(runs), names))
    return f'<div class="charts">{"".join(charts)}</div>'


def _by_epoch(runs: Runs, name: str) -> dict[int, Points]:
    def points(records: Sequence[Record]) -> Points:
        return [(number(each["epoch"]) + 1, number(each[name])) for each in records if name in each]

    return {at: points(run.summary.records) for at, run in enumerate(runs)}


def _seconds(runs: Runs) -> dict[int, Points]:
    return {
        at: [(number(each["epoch"]) + 1, seconds_of(each).get("total", 0.0)) for each in run.summary.records]
        for at, run in enumerate(runs)
    }


def _time(runs: Runs) -> str:
    stages = "".join(f'<li><i class="stage-{stage}"></i>{stage}</li>' for stage in WITHIN)
    parts = [f'<ul class="legend" aria-label="Stages of a step">{stages}</ul>']
    for run in runs:
        parts.append(f"<h3>{escape(run.name)}</h3>")
        if run.time is None:
            parts.append(paragraph("The steps of the run have no times."))
            continue
        parts.append('<div class="advice">' + "".join(map(paragraph, run.advice)) + "</div>")
        parts.append(scrolled(f"Time of {run.name}", time_charts(run.time)))
    return "".join(parts)


def _split(runs: Runs) -> str:
    parts = []
    for run in runs:
        parts.append(f"<h3>{escape(run.name)}</h3>")
        if isinstance(run.split, str):
            parts.append(paragraph(run.split))
            continue
        if run.split.picture is not None:
            parts.append(f'<div class="wide half">{split_chart(run.split.picture)}</div>')
        parts.append(f"<h3>Worst predictions of {escape(run.name)}</h3>")
        parts.append(paragraph(run.split.order, "faint"))
        parts.append(table(f"Worst predictions of {run.name}", run.split.heading, run.split.worst))
    return "".join(parts)


def _environment(runs: Runs) -> str:
    known = [dict(flattened(run.summary.environment)) for run in runs]
    paths = list(dict.fromkeys(path for each in known for path in each if path != "ranks"))
    if not paths:
        return paragraph("The runs were made by a version of khop that did not record it.")
    heading = ["", *(run.name for run in runs)]
    rows = [[_words(path), *(_shown(path, each.get(path)) for each in known)] for path in paths]
    return table("Environment", heading, rows)


def _settings(runs: Runs) -> str:
    heading = ["setting", *(run.name for run in runs)]
    tables: list[Mapping[str, object]] = [run.summary.settings for run in runs]
    differing = differences(tables)
    rows = [[path, *(_shown(path, value) for value in values)] for path, values in differing.items()]
    parts = []
    if len(runs) > 1:
        parts.append(
            table("Settings that differ", heading, rows) if rows else paragraph("All settings are equal.")
        )
    flat = [dict(flattened(each)) for each in tables]
    paths = list(dict.fromkeys(path for each in flat for path in each))
    every = [[path, *(_shown(path, each.get(path)) for each in flat)] for path in paths]
    parts.append(f"<details><summary>All settings</summary>{table('All settings', heading, every)}</details>")
    return "".join(parts)


def _words(path: str) -> str:
    return path.removesuffix("_bytes").replace("_", " ")


def _shown(path: str, value: object) -> str:
    match value:
        case None:
            return _NONE
        case bool():
            return "yes" if value else "no"
        case int() if path in ("memory_bytes", "peak_memory_bytes", "peak_device_bytes"):
            return in_bytes(value)
        case list() | tuple():
            return ", ".join(_shown(path, each) for each in value)
    return str(value)


SECTIONS: tuple[tuple[str, str, Callable[[Runs], str]], ...] = (
    ("scores", "Scores", _scores),
    ("curves", "Curves", _curves),
    ("time", "Where the time went", _time),
    ("traffic", "Caches and network", traffic_section),
    ("split", "Test split", _split),
    ("environment", "Memory and environment", _environment),
    ("settings", "Settings", _settings),
)
