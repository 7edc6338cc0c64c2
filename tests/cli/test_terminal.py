"""Lines and tables fit the terminal, and a Ctrl-C leaves it as it was: checked on a pseudo-terminal.

The bar of long reads: silent without a terminal, and its callback takes every report.

Long work without a terminal prints where it is, soon and then now and then; short work prints nothing.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import pytest
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from cli.test_processes import ENVIRONMENT
from cli.test_progress import record_of
from khop.cli.main import run
from khop.cli.progress import epoch_line, watching
from khop.cli.terminal import bytes_bar, counting_bar, fitting, progress_lines
from support.gate import WAIT_S

ESCAPE = re.compile(r"\x1b\[(\?25[hl]|[\d;]*[A-Za-z])")
HIDDEN, SHOWN = "\x1b[?25l", "\x1b[?25h"


class Screen:
    """The part of a terminal that bars use: lines, moves of the cursor, erased lines; no scrolling back."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.lines = [""]
        self.row = self.column = 0
        self.is_cursor_shown = True

    def feed(self, text: str) -> None:
        at = 0
        while at < len(text):
            escape = ESCAPE.match(text, at)
            if escape:
                self._obey(escape[1])
                at = escape.end()
            else:
                self._put(text[at])
                at += 1

    def _obey(self, order: str) -> None:
        if order.startswith("?25"):
            self.is_cursor_shown = order.endswith("h")
        elif order.endswith("A"):
            self.row -= int(order[:-1])
        elif order == "2K":
            self.lines[self.row] = ""

    def _put(self, character: str) -> None:
        if character == "\r":
            self.column = 0
        elif character == "\n" or self.column == self.width:
            self.row, self.column = self.row + 1, 0
            self.lines += [""] * (self.row + 1 - len(self.lines))
        if character not in "\r\n":
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + character + line[self.column + 1 :]
            self.column += 1


def interrupted(width: int, *arguments: str, after: str) -> tuple[Screen, int]:
    """The screen and the exit code of a command that gets a Ctrl-C from the keyboard."""
    keyboard, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    command = subprocess.Popen(
        [sys.executable, "-m", "khop", *arguments],
        # Workers of a test run have COLUMNS=80, which would count more than the terminal.
        env={k: v for k, v in ENVIRONMENT.items() if k not in ("COLUMNS", "LINES")} | {"TERM": "xterm"},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(terminal)
    screen, text, end = Screen(width), b"", time.monotonic() + WAIT_S
    is_interrupted = False
    while True:
        assert time.monotonic() < end, text.decode()
        if select.select([keyboard], [], [], 0.1)[0]:
            try:
                text += os.read(keyboard, 1 << 16)
            except OSError:  # the last process that had the terminal is gone
                break
        if not is_interrupted and after in text.decode(errors="ignore"):
            os.write(keyboard, b"\x03")
            is_interrupted = True
    os.close(keyboard)
    screen.feed(text.decode())
    return screen, command.wait(timeout=WAIT_S)


@pytest.mark.long
@pytest.mark.parametrize(
    ("width", "procs"),
    [(40, "1"), *(pytest.param(*case, marks=pytest.mark.long) for case in ((80, "1"), (40, "2")))],
)
def test_a_ctrl_c_leaves_no_bar_and_a_line_to_continue_with(small_run: Path, width: int, procs: str) -> None:
    arguments = ("train", "run.toml", "--epochs", "100000", "--procs", procs, "--out", "a")
    screen, code = interrupted(width, *arguments, after="epoch      2/")
    lines = [line.rstrip() for line in screen.lines if line.strip()]
    assert code == 128 + signal.SIGINT
    assert screen.is_cursor_shown
    assert "khop train --resume a" in lines
    assert not any("━" in line for line in lines), lines
    assert max(map(len, lines)) <= width


WHOLE = "epoch  1/12  loss 0.5124  train accuracy 0.8125  val accuracy 0.7500  test accuracy 0.5000  3.2 s"


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (None, WHOLE),
        (100, WHOLE),
        (80, "epoch  1/12  loss 0.5124  val accuracy 0.7500  test accuracy 0.5000  3.2 s"),
        (60, "epoch  1/12  loss 0.5124  val accuracy 0.7500  3.2 s"),
        (40, "epoch  1/12  val accuracy 0.7500"),
    ],
)
def test_a_line_of_an_epoch_goes_without_what_matters_least(width: int | None, line: str) -> None:
    assert epoch_line(record_of(0), 12, width) == line


@pytest.mark.parametrize("width", [40, 60, 80])
def test_bars_fit_and_show_how_far_they_are(width: int) -> None:
    out = io.StringIO()
    with watching(Console(file=out, width=width, force_terminal=True, color_system=None)) as watcher:
        watcher.started(epochs=12, steps=38)
        watcher.epoch_ended(record_of(0))
        watcher.stepped(1, 24, 1.702)
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", ESCAPE.sub("", out.getvalue()))]
    bars = [line for line in lines if line.startswith(("epochs", "steps"))]
    assert max(map(len, bars)) <= width - 4  # room for what the terminal shows of a Ctrl-C
    for words in ("1/12", "val accuracy 0.7500", "25/38", "loss 1.7020"):
        assert any(words in line for line in bars), bars


def test_a_table_goes_without_its_least_columns() -> None:
    table = Table(title="edges", box=SIMPLE_HEAD)
    for name in ("type", "edges", "p90", "size"):
        table.add_column(name, no_wrap=True)
    table.add_row("package -linked-> package", "590,602", "16", "2.9 MB", end_section=True)
    headers = {
        width: [column.header for column in fitting(Console(width=width), table, "p90", "size").columns]
        for width in (80, 50, 40)
    }
    assert headers == {
        80: ["type", "edges", "p90", "size"],
        50: ["type", "edges", "size"],
        40: ["type", "edges"],
    }


@pytest.mark.parametrize("width", [40, 60, 80])
def test_what_a_folder_holds_fits_the_terminal(
    learnable: Path, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    with pytest.raises(SystemExit):
        run(["info", str(learnable)])
    shown = ESCAPE.sub("", capsys.readouterr().out)
    tables, _, commands = shown.partition("Next:")
    assert max(len(line.rstrip()) for line in tables.splitlines()) <= width
    assert commands.startswith("\nkhop init")  # not broken within a word, so that it can be copied
    assert any("item" in line for line in tables.splitlines())


def test_nothing_is_written_where_stderr_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with bytes_bar() as notice:
        for done in (0, 5, 10):
            notice("checking x.npy", done, 10)
    assert capsys.readouterr() == ("", "")


def test_items_are_counted_on_rank_0_before_the_first_chunk_ends(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("khop.cli.terminal.FIRST_S", 0.01)
    said = threading.Event()
    monkeypatch.setattr("khop.cli.terminal.tell", lambda line: (print(line), said.set()))
    with counting_bar("evaluating", rank=1) as silent, counting_bar("evaluating") as progress:
        silent(1, 2)
        assert said.wait(60)
        assert capsys.readouterr().out.splitlines()[0] == "evaluating"
        progress(3, 4)


def test_short_work_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_lines("checking") as notice:
        for done in (0, 5, 10):
            notice("checking x.npy", done, 10)
    assert capsys.readouterr() == ("", "")


def test_the_first_line_comes_before_the_first_report(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("khop.cli.terminal.FIRST_S", 0.01)
    monkeypatch.setattr("khop.cli.terminal.NEXT_S", 0.01)
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
    monkeypatch.setattr("khop.cli.terminal.FIRST_S", 0.01)
    monkeypatch.setattr("khop.cli.terminal.NEXT_S", 0.01)
    said, deadline = "", time.monotonic() + 60
    with progress_lines("") as notice:
        notice("checking x.npy", 30, 20)
        while "x.npy" not in said and time.monotonic() < deadline:
            time.sleep(0.01)
            said = capsys.readouterr().err
    assert "khop: checking x.npy: 100 %, about 0 s left" in said
