"""Text for terminals: wrapped lines, quoted commands, and numbers parsed from options.

This module imports neither rich nor torch.
"""

from __future__ import annotations

import os
import shlex
import sys
import textwrap
from collections.abc import Sequence

from khop.graph.remote import with_urls


def tell(sentence: str, *command: str) -> None:
    """Print a message of khop on stderr, and a command to continue with: on a terminal, on a new line."""
    line, width = f"khop: {with_urls(sentence)}", _terminal_width()
    command = tuple(map(with_urls, command))
    if width is None:
        lines = [f"{line}; continue with: {shlex.join(command)}" if command else line]
    elif command:
        lines = [*wrapped(f"{line}; continue with:", width), *command_lines(command, width)]
    else:
        lines = wrapped(line, width)
    print(*lines, sep="\n", file=sys.stderr, flush=True)


def wrapped(line: str, width: int) -> list[str]:
    """Break the line into parts of at most `width` columns, or of one word.

    If the line has two columns, a name and a value, then the value continues below the value.
    """
    if len(line) <= width:
        return [line]
    name, gap, value = line.rpartition("  ")
    indent = len(name + gap) if name and value and "  " not in name.strip() else 0
    indent = indent if indent < width // 2 else 0
    return [
        part
        for of_line in line.splitlines()
        for part in textwrap.wrap(
            of_line,
            width,
            subsequent_indent=" " * indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
    ]


def command_lines(words: Sequence[str], width: int) -> list[str]:
    """Break a shell command into lines of at most `width` columns, or of one word.

    The shell reads the lines as one command.
    """
    lines: list[str] = []
    for word in map(shell_word, words):
        if lines and len(lines[-1]) + len(word) + len("  \\") <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(f"  {word}" if lines else word)
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


def shell_word(word: str) -> str:
    """Quote a word for a shell. A word `>` stays: it writes stdout to the file that follows."""
    return word if word == ">" else shlex.quote(word)


def _terminal_width() -> int | None:
    """Return the width of the terminal at stderr in columns; None if stderr is not a terminal."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or None
    except (OSError, ValueError):
        return None


_LARGEST = 2**63 - 1
_LARGEST_FANOUT = 2**31 - 1


def whole(option: str, text: str) -> int:
    """Parse a whole number, such as 2449029 or 1e11. Raises ValueError that names the option."""
    try:
        number = int(text) if text.strip().lstrip("+-").isdigit() else float(text)
        if number == int(number) and abs(number) <= _LARGEST:
            return int(number)
    except (ValueError, OverflowError):
        pass
    raise ValueError(f"{option} {text!r}: give a whole number, as 2449029 or 1e11, below 2^63")


def fanout_list(text: str) -> list[int]:
    """Parse the numbers of --fanouts."""
    return [_fanout(word) for word in text.split(",")]


def _fanout(word: str) -> int:
    try:
        fanout = int(word)
    except ValueError:
        fanout = -2
    if not -1 <= fanout <= _LARGEST_FANOUT:
        raise ValueError(
            f"--fanouts {word!r}: give numbers as 15,10,5, each at most {_LARGEST_FANOUT}, where -1 is for "
            "all neighbors"
        )
    return fanout
