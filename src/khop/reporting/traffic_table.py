"""The section of a report on caches and network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from khop.graph.progress import in_bytes
from khop.reporting.html import paragraph, table
from khop.reporting.line_chart import line_chart
from khop.reporting.reported_run import ReportedRun
from khop.reporting.scores import number

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
