"""The bar of long reads: silent without a terminal, and its callback takes every report."""

from __future__ import annotations

import threading

import pytest

from khop.cli.bytes_bar import bytes_bar, counting_bar


def test_nothing_is_written_where_stderr_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with bytes_bar() as notice:
        for done in (0, 5, 10):
            notice("checking x.npy", done, 10)
    assert capsys.readouterr() == ("", "")


def test_items_are_counted_on_rank_0_before_the_first_chunk_ends(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("khop.cli.progress_lines.FIRST_S", 0.01)
    said = threading.Event()
    monkeypatch.setattr("khop.cli.progress_lines.tell", lambda line: (print(line), said.set()))
    with counting_bar("evaluating", rank=1) as silent, counting_bar("evaluating") as progress:
        silent(1, 2)
        assert said.wait(60)
        assert capsys.readouterr().out.splitlines()[0] == "evaluating"
        progress(3, 4)
