"""The tables of a profile."""

from __future__ import annotations

import io

from rich.console import Console

from khop.cli.profile_table import profile_tables
from khop.profiling.summary import summarized
from support.synthetic_profiles import records_of


def shown(*ranks: dict[str, float], steps: int = 10) -> str:
    console = Console(file=io.StringIO(), width=100)
    for table in profile_tables(summarized(records_of(*ranks, steps=steps))):
        console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def row(text: str, table: int, rank: int) -> list[str]:
    rows = [line.split() for line in text.splitlines() if line.split()[:1] == [str(rank)]]
    return rows[table]


def test_a_process_alone_has_no_columns_for_others() -> None:
    text = shown({})
    assert "communi" not in text
    assert row(text, 0, 0) == ["0", "98.0", "1.0", "1%", "1.0", "1%", "95.0", "97%", "1.0", "1%"]
    assert row(text, 1, 0) == ["0", "1", "20%", "10.0", "10.0", "1,020", "10,204", "1.0", "kB", "1.0"]


def test_ranks_say_for_whom_they_waited() -> None:
    text = shown({}, {"forward": 0.15})
    assert row(text, 0, 0)[-2:] == ["1:", "100.0"]
    assert row(text, 0, 1)[-1] == "1%"  # of its logs: it waited for nobody


def test_of_one_step_the_busy_cores_are_left_open() -> None:
    assert row(shown({}, steps=1), 1, 0)[-1] == "kB"
