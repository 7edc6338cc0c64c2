"""Lines that fit a terminal, broken between words. Needs neither rich nor torch."""

from __future__ import annotations

import os
import shlex
import sys
import textwrap
from collections.abc import Sequence


def tell(sentence: str, *command: str) -> None:
    """Print a sentence of khop's on stderr, and the command to go on with: on a terminal, below it."""
    line, width = f"khop: {sentence}", _terminal_width()
    if width is None:
        lines = [f"{line}; go on with: {shlex.join(command)}" if command else line]
    elif command:
        lines = [*wrapped(f"{line}; go on with:", width), *command_lines(command, width)]
    else:
        lines = wrapped(line, width)
    print(*lines, sep="\n", file=sys.stderr, flush=True)


def wrapped(line: str, width: int) -> list[str]:
    """The line in parts of at most `width` columns, or of one word.

    Of a line of two columns, a name and a value, the value goes on below the value.
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
    """A shell command in lines of at most `width` columns, or of one word; the shell reads them as one."""
    lines: list[str] = []
    for word in map(shlex.quote, words):
        if lines and len(lines[-1]) + len(word) + len("  \\") <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(f"  {word}" if lines else word)
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


def _terminal_width() -> int | None:
    """Columns of the terminal that stderr is; None where it is none."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or None
    except (OSError, ValueError):
        return None
