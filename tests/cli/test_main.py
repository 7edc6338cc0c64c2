"""The command as a whole: version, errors in one line, bugs with their traceback."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import typer

import khop
from khop.cli import main

Command = Callable[..., object]


def test_the_version_is_the_packages(khop_command: Command) -> None:
    ran = khop_command("--version")
    assert ran == type(ran)(0, f"khop {khop.__version__}\n", "")


def test_python_m_khop_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "khop", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"khop {khop.__version__}\n"


def test_the_shell_can_complete_commands() -> None:
    environment = {
        **os.environ,
        "_KHOP_COMPLETE": "complete_bash",
        "COMP_WORDS": "khop --ver",
        "COMP_CWORD": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "khop"], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["--version"]


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ValueError("sampler.fanouts has 2 entries"), 2, "khop: sampler.fanouts has 2 entries\n"),
        (
            OSError(errno.ENOSPC, "No space left on device", "runs/a"),
            1,
            "khop: runs/a: No space left on device\n",
        ),
        (PermissionError(errno.EACCES, "Permission denied", "runs"), 1, "khop: runs: Permission denied\n"),
        (OSError("the disk is gone"), 1, "khop: the disk is gone\n"),
    ],
)
def test_what_the_user_or_the_machine_got_wrong_is_one_line(
    khop_command: Command, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, line: str
) -> None:
    monkeypatch.setattr(main, "app", _raising(error))
    ran = khop_command("go")
    assert ran == type(ran)(code, "", line)


def test_every_error_keeps_its_traceback_for_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KHOP_TRACEBACK", "1")
    monkeypatch.setattr(main, "app", _raising(ValueError("fanouts")))
    with pytest.raises(ValueError, match="fanouts"):
        main.run(["go"])


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "app", _raising(KeyError("bug")))
    with pytest.raises(KeyError, match="bug"):
        main.run(["go"])


def _raising(error: Exception) -> typer.Typer:
    app = typer.Typer()

    @app.command()
    def go(word: str) -> None:
        raise error

    return app
