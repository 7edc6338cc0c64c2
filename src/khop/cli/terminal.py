"""Output that fits the terminal: lines broken between words, tables without their least columns, bars."""

from __future__ import annotations

import shlex

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.progress import Progress
from rich.table import Table

from khop.cli.lines import command_lines, wrapped

_WIDE = 200  # columns of a file or a pipe
_ECHO = 4  # columns that a terminal needs for "^C", twice: else a Ctrl-C moves the bars down a line


def say(console: Console, *lines: str) -> None:
    """Print lines without colors or markup; on a terminal, broken between words to fit it."""
    for line in lines:
        parts = wrapped(line, console.width) if console.is_terminal else [line]
        for part in parts:
            console.print(part, markup=False, highlight=False, soft_wrap=True)


def say_command(console: Console, *command: str) -> None:
    """Print a shell command so that it can be copied: on a terminal, the shell reads its lines as one."""
    parts = command_lines(command, console.width) if console.is_terminal else [shlex.join(command)]
    for part in parts:
        console.print(part, markup=False, highlight=False, soft_wrap=True)


def table_console() -> Console:
    """stdout for tables: as wide as the terminal; elsewhere, as wide as they are."""
    console = Console()
    return console if console.is_terminal else Console(width=_WIDE)


def fitting(console: Console, table: Table, *least: str) -> Table:
    """The table without so many of its columns `least`, in this order, that its lines fit the console."""
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
    """Bars with room beside them for the "^C" of a terminal, which would else move them down a line."""

    def get_renderable(self) -> RenderableType:
        """The bars, not as wide as the terminal."""
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
