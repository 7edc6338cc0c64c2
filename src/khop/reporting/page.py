"""The page of `khop report`: one file without scripts that loads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from khop.reporting.reported_run import ReportedRun
from khop.reporting.sections import SECTIONS

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
