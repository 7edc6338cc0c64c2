"""Long work without a terminal prints where it is, soon and then now and then; short work prints nothing."""

from __future__ import annotations

import time

import pytest

from khop.cli.progress_lines import progress_lines


def test_short_work_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_lines("checking") as notice:
        for done in (0, 5, 10):
            notice("checking x.npy", done, 10)
    assert capsys.readouterr() == ("", "")


def test_the_first_line_comes_before_the_first_report(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("khop.cli.progress_lines.FIRST_S", 0.01)
    monkeypatch.setattr("khop.cli.progress_lines.NEXT_S", 0.01)
    lines: list[str] = []

    def wait() -> None:
        deadline = time.monotonic() + 60
        while not lines[-1:] and time.monotonic() < deadline:
            time.sleep(0.01)
            lines.extend(capsys.readouterr().err.splitlines())

    with progress_lines("reading g") as notice:
        wait()
        assert lines.pop() == "khop: reading g"
        lines.clear()
        notice("checking x.npy", 5, 20)
        time.sleep(0.05)
        capsys.readouterr()
        wait()
    assert lines[0].startswith("khop: checking x.npy: 25 %, about ")
    assert lines[0].endswith(" s left")


def test_work_beyond_its_estimate_is_done_and_takes_no_negative_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("khop.cli.progress_lines.FIRST_S", 0.01)
    monkeypatch.setattr("khop.cli.progress_lines.NEXT_S", 0.01)
    said, deadline = "", time.monotonic() + 60
    with progress_lines("") as notice:
        notice("checking x.npy", 30, 20)
        while "x.npy" not in said and time.monotonic() < deadline:
            time.sleep(0.01)
            said = capsys.readouterr().err
    assert "khop: checking x.npy: 100 %, about 0 s left" in said
