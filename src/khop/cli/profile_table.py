"""Tables of a profile: the time of a step, and the time to make its batch."""

from __future__ import annotations

from collections.abc import Iterator

from rich.box import SIMPLE_HEAD
from rich.filesize import decimal
from rich.table import Table

from khop.profiling.summary import RankSummary, Summary

# Columns that are removed on a narrow terminal, in this order.
LEAST = ("logs", "transfer", "threads", "batch", "seeds/s", "busy", "edges/s", "cores busy")
_MARKED = 0.1  # share of a step's time: larger shares are highlighted


def profile_tables(summary: Summary) -> Iterator[Table]:
    """Yield the table of the training threads by rank, then the table of the sampler threads."""
    yield _training(summary)
    yield _loading(summary)


def _training(summary: Summary) -> Table:
    has_others = len(summary.ranks) > 1
    stages = {"waiting": "waits for\nits batch", "moving": "transfer", "computing": "compute"}
    stages |= {"communicating": "communi-\ncation"} if has_others else {}
    stages["saving"] = "logs"
    table = _table("training: ms per step, share of the time", "rank", "step", *stages.values())
    if has_others:
        table.add_column("waits on", no_wrap=True)
    for rank in summary.ranks:
        cells = [_cell(rank, stage) for stage in stages]
        waits_on = [_waits_on(rank)] if has_others else []
        table.add_row(_name(rank, summary), f"{_ms(rank.seconds, rank)}", *cells, *waits_on)
    return table


def _loading(summary: Summary) -> Table:
    names = ("rank", "threads", "busy", "sampling", "gather", "seeds/s", "edges/s", "batch", "cores busy")
    table = _table("making batches: ms of thread time per batch", *names)
    for rank in summary.ranks:
        table.add_row(
            _name(rank, summary),
            str(rank.workers),
            f"{rank.workers_busy:.0%}",
            _ms(rank.of_stage["sampling"], rank),
            _ms(rank.of_stage["gathering"], rank),
            f"{rank.seeds_per_s:,.0f}",
            f"{rank.edges_per_s:,.0f}",
            decimal(round(rank.batch_bytes)),
            "" if rank.busy_cores is None else f"{rank.busy_cores:.1f}",
        )
    return table


def _table(title: str, *names: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _name(rank: RankSummary, summary: Summary) -> str:
    has_hosts = len({other.host for other in summary.ranks}) > 1
    return f"{rank.rank} {rank.host}" if has_hosts else str(rank.rank)


def _ms(seconds: float, rank: RankSummary) -> str:
    return f"{1e3 * seconds / rank.steps:.1f}"


def _cell(rank: RankSummary, stage: str) -> str:
    share = rank.share(stage)
    text = f"{_ms(rank.of_stage[stage], rank)} {share:4.0%}"
    return f"[bold]{text}[/bold]" if share >= _MARKED else text


def _waits_on(rank: RankSummary) -> str:
    """Name the ranks that this rank waited for, the longest wait first."""
    costs = sorted(rank.waited_for.items(), key=lambda item: -item[1])
    named = [f"{other}: {_ms(seconds, rank)}" for other, seconds in costs[:2] if seconds > 0]
    return ", ".join(named)
