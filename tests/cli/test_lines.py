"""Lines fit the terminal, broken between words."""

from __future__ import annotations

import subprocess

import pytest

from khop.cli.lines import command_lines, tell, wrapped


def test_lines_break_between_words_and_values_stay_in_their_column() -> None:
    assert wrapped("khop: stopped; there is no checkpoint yet", 20) == [
        "khop: stopped; there",
        "is no checkpoint yet",
    ]
    assert wrapped("files  a.npy, b.npy, c.npy", 20) == ["files  a.npy, b.npy,", "       c.npy"]
    assert wrapped("x" * 30, 20) == ["x" * 30]


def test_a_long_command_is_one_for_the_shell() -> None:
    words = ["khop", "train", "--resume", "a long folder", "--epochs", "100"]
    lines = command_lines(words, 32)
    assert max(map(len, lines)) <= 32
    assert len(lines) > 1
    script = "\n".join(["khop() { printf '%s|' khop \"$@\"; }", *lines])
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "|".join(words) + "|"


def test_a_message_without_a_terminal_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    tell("stopped", "khop", "train", "--out", "a b")
    assert capfd.readouterr().err == "khop: stopped; continue with: khop train --out 'a b'\n"
