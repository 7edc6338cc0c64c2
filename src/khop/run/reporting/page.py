"""The page of `khop report`: one file without scripts that loads nothing.

The sections of a report, each a function from runs to HTML; an empty text leaves it out.

Tables of a report.

Contents of a report for one run.

The section of a report on caches and network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from khop.graph.atomic import in_bytes
from khop.run.reporting.charts import Points, line_chart, split_chart, time_charts
from khop.run.reporting.examined import Examined
from khop.run.reporting.run_summary import Record, RunSummary, differences, flattened, number, seconds_of
from khop.run.reporting.time_spent import TimeSpent
from khop.training.step_clock import WITHIN


def table(label: str, heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table that scrolls within the page if it is wide. The first cell of a row is its heading.

    Cells are plain text.
    """
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heading)
    body = "".join(f"<tr>{_row(row)}</tr>" for row in rows)
    content = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="table" role="region" aria-label="{escape(label)}" tabindex="0">{content}</div>'


def _row(row: Sequence[str]) -> str:
    first, *cells = map(escape, row)
    return f'<th scope="row">{first}</th>' + "".join(f"<td>{cell}</td>" for cell in cells)


def scrolled(label: str, pictures: str) -> str:
    """Return pictures that scroll within the page if they are wide."""
    return f'<div class="wide" role="region" aria-label="{escape(label)}" tabindex="0">{pictures}</div>'


def paragraph(words: str, kind: str = "") -> str:
    """Return a paragraph of plain text."""
    return f'<p class="{kind}">{escape(words)}</p>' if kind else f"<p>{escape(words)}</p>"


@dataclass(frozen=True)
class ReportedRun:
    """A run and the results of its examination."""

    name: str
    summary: RunSummary
    time: TimeSpent | None  # None if its steps have no times
    advice: tuple[str, ...]  # sentences on the bottleneck and on the setting to change
    split: Examined | str  # the test split, or a sentence with the reason why it is missing


_BYTES = ("row_bytes_received", "id_bytes_received", "server_bytes")
_RATES = {"hit_rate": "cache hit rate", "device_hit_rate": "hit rate on the device"}


def traffic_section(runs: Sequence[ReportedRun]) -> str:
    """Return hit rates and bytes by run and epoch; a sentence if the runs exchanged no data."""
    if not any(_of_epochs(run) for run in runs):
        return paragraph(
            "The runs exchanged no rows with other processes or servers, so there is no cache to hit."
        )
    rates = _rates(runs)
    rows = [[run.name, *_cells(run, rates)] for run in runs]
    heading = ["run", "rows needed", "remote", *rates.values(), "received per epoch", "received in all"]
    charts = [_chart(runs, name, title) for name, title in rates.items()]
    return table("Caches and network", heading, rows) + f'<div class="charts">{"".join(charts)}</div>'


def _of_epochs(run: ReportedRun) -> list[Mapping[str, float]]:
    return [found for record in run.summary.records if isinstance(found := record.get("traffic"), Mapping)]


def _rates(runs: Sequence[ReportedRun]) -> Mapping[str, str]:
    """Return the rates to show. Without a cache on a device, its hit rate is 0 everywhere and left out."""
    on_device = any(epoch.get("device_hit_rate") for run in runs for epoch in _of_epochs(run))
    return {name: title for name, title in _RATES.items() if on_device or name != "device_hit_rate"}


def _cells(run: ReportedRun, shown: Mapping[str, str]) -> list[str]:
    epochs = _of_epochs(run)
    if not epochs:
        return ["–"] * (4 + len(shown))
    needed, remote = (sum(epoch.get(name, 0) for epoch in epochs) for name in ("needed_rows", "remote_rows"))
    last = epochs[-1]
    received = sum(epoch.get(name, 0) for epoch in epochs for name in _BYTES)
    rates = [f"{last[name]:.1%}" if name in last else "–" for name in shown]
    return [f"{needed:,.0f}", f"{remote:,.0f}", *rates, in_bytes(received / len(epochs)), in_bytes(received)]


def _chart(runs: Sequence[ReportedRun], name: str, title: str) -> str:
    lines = {
        at: [
            (number(record["epoch"]) + 1, 100 * found[name])
            for record in run.summary.records
            if isinstance(found := record.get("traffic"), Mapping) and name in found
        ]
        for at, run in enumerate(runs)
    }
    return line_chart(f"{title}, %", lines, [run.name for run in runs])


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


_STYLE = Path(__file__).with_name("report.css")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"  # of the page: it loads nothing
_HEAD = (
    '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"><link rel="icon" href="data:,">'
)


def page(runs: Sequence[ReportedRun], written: str) -> str:
    """Return the page as HTML; `written` names the program and the day."""
    parts = [(anchor, title, section(runs)) for anchor, title, section in SECTIONS]
    there = [part for part in parts if part[2]]
    links = "".join(f'<li><a href="#{anchor}">{title}</a></li>' for anchor, title, _ in there)
    body = "".join(
        f'<section id="{anchor}"><h2>{title}</h2>{text}</section>' for anchor, title, text in there
    )
    title = escape(f"khop: {', '.join(run.name for run in runs)}")
    navigation = f'<nav aria-label="Sections"><ul>{links}</ul></nav>'
    heading = f"<h1>{_heading(runs)}</h1><p class='faint'>{escape(written)}</p>"
    return (
        f'<!doctype html>\n<html lang="en"><head>{_HEAD}<title>{title}</title>'
        f"<style>{_STYLE.read_text()}</style></head>\n<body>"
        f"<header>{heading}{navigation}{_legend(runs)}</header>\n<main>{body}</main></body></html>\n"
    )


def _heading(runs: Sequence[ReportedRun]) -> str:
    graphs = ", ".join(dict.fromkeys(run.summary.graph for run in runs))
    return escape(f"{len(runs)} runs on {graphs}" if len(runs) > 1 else f"A run on {graphs}")


def _legend(runs: Sequence[ReportedRun]) -> str:
    entries = "".join(
        f'<li><i class="run-{number % 6}"></i>{escape(run.name)} '
        f'<span class="faint">{escape(run.summary.model)}</span></li>'
        for number, run in enumerate(runs)
    )
    return f'<ul class="legend" aria-label="Runs">{entries}</ul>'
