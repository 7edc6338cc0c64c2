"""The page of `khop report`: a self-contained file without scripts, from the template report.html."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from khop.graph.atomic import in_bytes
from khop.run.reporting.charts import (
    RUN_COLORS,
    STAGE_COLORS,
    Picture,
    Points,
    line_chart,
    split_chart,
    time_chart,
)
from khop.run.reporting.examined import Examined
from khop.run.reporting.run_summary import (
    Record,
    RunSummary,
    differences,
    epochs_of,
    flattened,
    number,
    seconds_of,
)
from khop.run.reporting.time_spent import TimeSpent
from khop.training.step_clock import WITHIN

_NONE = "–"


@dataclass(frozen=True)
class ReportedRun:
    """A run and the results of its examination."""

    name: str
    summary: RunSummary
    time: TimeSpent | None  # None if its steps have no times
    advice: tuple[str, ...]  # sentences on the bottleneck and on the setting to change
    split: Examined | str  # the test split, or the reason why it is missing

    @property
    def time_chart(self) -> Picture | None:
        """The picture of its time."""
        return None if self.time is None else time_chart(self.time)

    @property
    def split_chart(self) -> Picture | None:
        """The picture of its test split."""
        found = None if isinstance(self.split, str) else self.split.picture
        return None if found is None else split_chart(found)


@dataclass(frozen=True)
class Table:
    """Cells of plain text; the first cell of a row is its heading."""

    label: str
    heading: Sequence[str]
    rows: Sequence[Sequence[str]]


Runs = Sequence[ReportedRun]


def page(runs: Runs, written: str) -> str:
    """Return the page as HTML; `written` names the program and the day."""
    graphs = ", ".join(dict.fromkeys(run.summary.graph for run in runs))
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("report.html").render(
        runs=runs,
        title=f"{len(runs)} runs on {graphs}" if len(runs) > 1 else f"A run on {graphs}",
        written=written,
        run_colors=RUN_COLORS,
        stage_colors={stage: STAGE_COLORS[stage] for stage in WITHIN},
        scores=_scores(runs),
        curves=_curves(runs),
        traffic=_traffic(runs),
        rates=_rate_charts(runs),
        environment=_environment(runs),
        settings=_settings(runs),
    )


def _scores(runs: Runs) -> Table:
    names = list(dict.fromkeys(name for run in runs for name in run.summary.scores))
    heading = ["run", "best epoch", *(name.replace("_", " ") for name in names), "epochs", "time", "state"]
    rows = []
    for run in runs if names else ():
        summary = run.summary
        best = f"{epochs_of(summary.best):.4g}" if summary.best else _NONE
        cells = [_score(run, name) for name in names]
        epochs = f"{len(summary.records)} of {summary.epochs_asked}"
        rows.append([run.name, best, *cells, epochs, f"{summary.seconds:.1f} s", summary.state.value])
    return Table("Scores", heading, rows)


def _score(run: ReportedRun, name: str) -> str:
    if name not in run.summary.scores:
        return _NONE
    baselines = run.summary.baselines.get(name, {}).items()
    beside = ", ".join(f"{word} {value:.4f}" for word, value in baselines)
    return f"{run.summary.scores[name]:.4f}" + (f" ({beside})" if beside else "")


def _curves(runs: Runs) -> list[Picture]:
    def of(name: str) -> Callable[[Record], object]:
        return lambda record: record.get(name)

    scores = dict.fromkeys(name for run in runs for name in run.summary.scores)
    charts = {"training loss": of("loss"), **{name.replace("_", " "): of(name) for name in scores}}
    charts["seconds per epoch"] = lambda record: seconds_of(record).get("total")
    return _charts(runs, charts)


def _charts(runs: Runs, values: Mapping[str, Callable[[Record], object]]) -> list[Picture]:
    """Draw a chart for each title, with a line per run; epochs without a value are left out."""

    def points(records: Sequence[Record], value: Callable[[Record], object]) -> Points:
        found = ((epochs_of(each), value(each)) for each in records)
        return sorted((epoch, number(at)) for epoch, at in found if at is not None)

    charts = (
        line_chart(title, {at: points(run.summary.evaluated, value) for at, run in enumerate(runs)})
        for title, value in values.items()
    )
    return [chart for chart in charts if chart is not None]


_BYTES = ("row_bytes_received", "id_bytes_received", "server_bytes")
_RATES = {"hit_rate": "cache hit rate", "device_hit_rate": "hit rate on the device"}


def _exchanged(record: Record) -> Mapping[str, float]:
    return found if isinstance(found := record.get("traffic"), Mapping) else {}


def _of_epochs(run: ReportedRun) -> list[Mapping[str, float]]:
    return [found for record in run.summary.records if (found := _exchanged(record))]


def _rates(runs: Runs) -> Mapping[str, str]:
    """Return the hit rates to show. The rate of the device cache is left out if it is 0 everywhere."""
    on_device = any(epoch.get("device_hit_rate") for run in runs for epoch in _of_epochs(run))
    return {name: title for name, title in _RATES.items() if on_device or name != "device_hit_rate"}


def _traffic(runs: Runs) -> Table:
    """Return hit rates and bytes by run; empty if the runs exchanged no data."""
    rates = _rates(runs)
    heading = ["run", "rows needed", "remote", *rates.values(), "received per epoch", "received in all"]
    rows = [[run.name, *_cells(run, rates)] for run in runs] if any(map(_of_epochs, runs)) else []
    return Table("Caches and network", heading, rows)


def _cells(run: ReportedRun, rates: Mapping[str, str]) -> list[str]:
    epochs = _of_epochs(run)
    if not epochs:
        return [_NONE] * (4 + len(rates))
    needed, remote = (sum(epoch.get(name, 0) for epoch in epochs) for name in ("needed_rows", "remote_rows"))
    received = sum(epoch.get(name, 0) for epoch in epochs for name in _BYTES)
    shown = [f"{epochs[-1][name]:.1%}" if name in epochs[-1] else _NONE for name in rates]
    return [f"{needed:,.0f}", f"{remote:,.0f}", *shown, in_bytes(received / len(epochs)), in_bytes(received)]


def _rate_charts(runs: Runs) -> list[Picture]:
    def percent(name: str) -> Callable[[Record], object]:
        return lambda record: None if name not in (found := _exchanged(record)) else 100 * found[name]

    return _charts(runs, {f"{title}, %": percent(name) for name, title in _rates(runs).items()})


def _environment(runs: Runs) -> Table:
    known = [dict(flattened(run.summary.environment)) for run in runs]
    paths = dict.fromkeys(path for each in known for path in each if path != "ranks")
    words = {path: path.removesuffix("_bytes").replace("_", " ") for path in paths}
    rows = [[words[path], *(_shown(path, each.get(path)) for each in known)] for path in paths]
    return Table("Environment", ["", *(run.name for run in runs)], rows)


def _settings(runs: Runs) -> tuple[Table, Table]:
    """Return the settings that differ, and all settings."""
    tables: list[Mapping[str, object]] = [run.summary.settings for run in runs]
    flat = [dict(flattened(each)) for each in tables]
    paths = dict.fromkeys(path for each in flat for path in each)
    every = {path: tuple(each.get(path) for each in flat) for path in paths}
    heading = ["setting", *(run.name for run in runs)]
    differing, all_of = (
        [[path, *(_shown(path, value) for value in values)] for path, values in found.items()]
        for found in (differences(tables), every)
    )
    return Table("Settings that differ", heading, differing), Table("All settings", heading, all_of)


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
