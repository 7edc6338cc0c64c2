"""Lines fit the terminal, broken between words.

Numbers of options: whole numbers in any spelling, and lists of fanouts.
"""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from khop.cli.lines import command_lines, fanout_list, tell, whole, wrapped


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


@given(number=st.integers(-(2**63) + 1, 2**63 - 1))
def test_digits_are_read_exactly(number: int) -> None:
    assert whole("--nodes", str(number)) == number


@pytest.mark.parametrize(("text", "number"), [("1e11", 10**11), ("2.5e3", 2500), ("+7", 7), (" 8 ", 8)])
def test_a_float_without_a_fraction_is_a_whole_number(text: str, number: int) -> None:
    assert whole("--nodes", text) == number


@pytest.mark.parametrize("text", ["", "1.5", "many", "1e19", "inf", "nan", "0x10"])
def test_other_text_is_refused_with_the_option(text: str) -> None:
    with pytest.raises(ValueError, match=rf"--nodes {text!r}: give a whole number"):
        whole("--nodes", text)


@given(fanouts=st.lists(st.integers(-1, 2**31 - 1), min_size=1))
def test_fanouts_are_read_in_order(fanouts: list[int]) -> None:
    assert fanout_list(",".join(map(str, fanouts))) == fanouts


@pytest.mark.parametrize("text", ["", "5,", "5,-2", "5,2147483648", "a"])
def test_a_wrong_fanout_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=rf"--fanouts {text.split(',')[-1]!r}: give numbers"):
        fanout_list(text)
