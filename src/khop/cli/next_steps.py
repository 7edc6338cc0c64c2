"""Commands that come next: the end of the output of each command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from khop.cli import terminal
from khop.cli.terminal import say, say_command


def say_next(console: Console, *commands: Sequence[str]) -> None:
    """Print commands that come next, below an empty line."""
    say(console, "", "Next:")
    for command in commands:
        say_command(console, *command)


def tell_next(*commands: Sequence[str]) -> None:
    """Print commands that come next, if a person reads stdout: else the output is for another program."""
    if terminal.stdout_is_a_terminal():
        say_next(Console(stderr=True), *commands)


def reading(path: Path | str) -> tuple[str, ...]:
    """Return a command that shows the first rows of a file that khop wrote: NumPy or Parquet."""
    name = str(path)
    if name.endswith(".npy"):
        return "python", "-c", f"import numpy; print(numpy.load({name!r}, mmap_mode='r')[:3])"
    return "python", "-c", f"import pyarrow.parquet as pq; print(pq.read_table({name!r}).slice(0, 3))"
