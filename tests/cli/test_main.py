"""The command as a whole: version, help, and every error in one line."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

import khop
from cli.conftest import Ran
from khop.cli import main
from khop.graph.build import write_graph
from khop.graph.tables import NodeTable

Command = Callable[..., Ran]


def test_the_version_is_the_packages(khop_command: Command) -> None:
    ran = khop_command("--version")
    assert ran == type(ran)(0, f"khop {khop.__version__}\n", "")


def test_python_m_khop_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "khop", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"khop {khop.__version__}\n"


@pytest.mark.long
@pytest.mark.parametrize(
    ("encoding", "name", "printed"),
    [
        ("ascii", "größe".encode(), b"gr\\xf6\\xdfe"),
        ("latin-1", "größe 数".encode(), "größe \\u6570".encode("latin-1")),
        ("utf-8:strict", b"not utf-8 \xff", b"not utf-8 \xff"),
    ],
)
def test_a_terminal_that_lacks_characters_gets_them_escaped(
    tmp_path: Path, encoding: str, name: bytes, printed: bytes
) -> None:
    graph = write_graph(tmp_path / "g", {"a": NodeTable(2)}, {})
    os.rename(os.fsencode(graph), os.fsencode(tmp_path) + b"/" + name)
    done = subprocess.run(
        [os.fsencode(sys.executable), b"-m", b"khop", b"info", name],
        env=os.environ | {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "1"},
        cwd=tmp_path, capture_output=True, check=False, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(printed)


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
    monkeypatch.setattr(main, "built", lambda: _raising(error))
    ran = khop_command("go")
    assert ran == type(ran)(code, "", line)


@pytest.mark.parametrize("where", [("--debug", "go"), ("go", "--debug")], ids=" ".join)
def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch, where: tuple[str, ...]) -> None:
    monkeypatch.setattr(main, "built", lambda: _raising(ValueError("fanouts")))
    with pytest.raises(ValueError, match="fanouts"):
        main.run(where)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (KeyError("bug"), "khop: KeyError: 'bug' (unexpected; this is likely a bug in khop, its traceback: "),
        (AssertionError(), "khop: AssertionError (unexpected; this is likely a bug in khop, its traceback: "),
        (MemoryError(), "khop: not enough memory: use a machine with more memory"),
        (
            RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB\nfree"),
            "khop: not enough memory on the GPU (CUDA out of memory. Tried to allocate 2.00 GiB): "
            "keep less on the GPU (--topology pinned or host; --features pinned",
        ),
        (MemoryError("std::bad_alloc"), "khop: not enough memory (std::bad_alloc): use a machine with "),
        (
            RuntimeError("[enforce] DefaultCPUAllocator: can't allocate memory: 9 bytes\n  frame #0: c10"),
            "khop: not enough memory ([enforce] DefaultCPUAllocator: can't allocate memory: 9 bytes): use a ",
        ),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_an_unexpected_error_is_one_line_too(
    khop_command: Command, monkeypatch: pytest.MonkeyPatch, error: Exception, line: str
) -> None:
    monkeypatch.setattr(main, "built", lambda: _raising(error))
    ran = khop_command("go")
    assert (ran.code, ran.stdout) == (1, "")
    assert ran.stderr.startswith(line)
    assert ran.stderr.count("\n") == 1


def test_ctrl_c_in_a_command_is_said_in_a_line(
    khop_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("khop.cli.plan.print_plan", _interrupted)
    sizes = "--nodes 10 --edges 10 --feature-bytes 4 --fanouts 2 --machines 1 --network 1"
    assert khop_command("plan", *sizes.split()) == Ran(130, "", "khop: stopped\n")


def _interrupted(*given: object) -> None:
    raise KeyboardInterrupt


def test_help_and_version_are_found_under_every_usual_name(khop_command: Command) -> None:
    version = f"khop {khop.__version__}\n"
    assert [khop_command(word).stdout for word in ("version", "--version")] == [version] * 2
    whole, train = khop_command("--help").stdout, khop_command("train", "--help").stdout
    assert "khop" in whole
    assert "--learning-rate" in train
    assert khop_command("-h").stdout == khop_command("help").stdout == whole
    assert khop_command("train", "-h").stdout == khop_command("help", "train").stdout == train
    assert khop_command("help", "graph", "sort").stdout == khop_command("graph", "sort", "-h").stdout
    assert khop_command("help", "trian").code == 2


def _raising(error: Exception) -> typer.Typer:
    app = typer.Typer()

    @app.command()
    def go(word: str) -> None:
        raise error

    return app
