"""Output that fits the terminal: wrapped lines, tables without their least important columns, and bars."""

from __future__ import annotations

import sys

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.progress import Progress
from rich.table import Table

from khop.cli.lines import command_lines, shell_word, wrapped

_WIDE = 200  # width of a file or a pipe, in columns
_ECHO = 4  # columns for two "^C" of the terminal: without them, Ctrl-C would move the bars down a line


def say(console: Console, *lines: str) -> None:
    """Print lines without colors or markup. On a terminal, they are broken between words to fit it."""
    for line in lines:
        parts = wrapped(line, console.width) if console.is_terminal else [line]
        for part in parts:
            console.print(part, markup=False, highlight=False, soft_wrap=True)


def say_command(console: Console, *command: str) -> None:
    """Print a shell command so that it can be copied, even if the terminal shows it in several lines."""
    parts = (
        command_lines(command, console.width) if console.is_terminal else [" ".join(map(shell_word, command))]
    )
    for part in parts:
        console.print(part, markup=False, highlight=False, soft_wrap=True)


def stdout_is_a_terminal() -> bool:
    """Return whether a person reads stdout, not a file or a program."""
    return sys.stdout.isatty()


def table_console() -> Console:
    """Return a console on stdout for tables: as wide as the terminal, or wide enough for any table."""
    console = Console()
    return console if console.is_terminal else Console(width=_WIDE)


def fitting(console: Console, table: Table, *least: str) -> Table:
    """Remove columns in the order of `least` until the lines of the table fit the console."""
    for header in least:
        if Measurement.get(console, console.options.update(width=_WIDE), table).maximum <= console.width:
            break
        table = _without(table, header)
    return table


def _without(table: Table, header: str) -> Table:
    columns = [column for column in table.columns if column.header != header]
    rest = Table(
        title=table.title,
        title_justify=table.title_justify,
        title_style=table.title_style,
        box=SIMPLE_HEAD,
        pad_edge=table.pad_edge,
    )
    for column in columns:
        rest.add_column(
            column.header, justify=column.justify, no_wrap=column.no_wrap, overflow=column.overflow
        )
    cells = zip(*(column.cells for column in columns), strict=True)
    for row, of_row in zip(table.rows, cells, strict=True):
        rest.add_row(*of_row, end_section=row.end_section)
    return rest


class RoomyProgress(Progress):
    """Bars that leave room for the "^C" of a terminal, which would otherwise move them down a line."""

    def get_renderable(self) -> RenderableType:
        """Return the bars, narrower than the terminal."""
        return _Narrower(super().get_renderable())


class _Narrower:
    def __init__(self, inner: RenderableType) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(
            self._inner, options.update_width(max(1, options.max_width - _ECHO)), pad=False
        )
        for number, line in enumerate(lines):
            if number:
                yield "\n"
            yield from line
