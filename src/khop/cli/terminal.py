"""Terminal output: wrapped lines, tables that drop columns to fit, progress bars and next commands.

If stderr is not a terminal, progress is printed as lines.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from khop.cli.lines import command_lines, shell_word, tell, wrapped
from khop.graph.atomic import ProgressCallback
from khop.graph.remote import with_urls

_WIDE = 200  # width of a file or a pipe, in columns
_ECHO = 4  # columns for two "^C" of the terminal, which would otherwise move the bars down a line


def say(console: Console, *lines: str) -> None:
    """Print lines without colors or markup. On a terminal, they are broken between words to fit it."""
    for line in map(with_urls, lines):
        parts = wrapped(line, console.width) if console.is_terminal else [line]
        for part in parts:
            console.print(part, markup=False, highlight=False, soft_wrap=True)


def say_command(console: Console, *command: str) -> None:
    """Print a shell command so that it can be copied, even if the terminal shows it in several lines."""
    command = tuple(map(with_urls, command))
    parts = (
        command_lines(command, console.width) if console.is_terminal else [" ".join(map(shell_word, command))]
    )
    for part in parts:
        console.print(part, markup=False, highlight=False, soft_wrap=True)


def stdout_is_a_terminal() -> bool:
    """Return whether stdout is a terminal, not a file or a pipe."""
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


def say_next(console: Console, *commands: Sequence[str]) -> None:
    """Print the commands to run next, below an empty line."""
    say(console, "", "Next:")
    for command in commands:
        say_command(console, *command)


def tell_next(*commands: Sequence[str]) -> None:
    """Print the commands to run next, if stdout is a terminal."""
    if stdout_is_a_terminal():
        say_next(Console(stderr=True), *commands)


def reading(path: Path | str) -> tuple[str, ...]:
    """Return a command that shows the first rows of a NumPy or Parquet file written by khop."""
    name = str(path)
    if name.endswith(".npy"):
        return "python", "-c", f"import numpy; print(numpy.load({name!r}, mmap_mode='r')[:3])"
    return "python", "-c", f"import pyarrow.parquet as pq; print(pq.read_table({name!r}).slice(0, 3))"


FIRST_S, NEXT_S = 1.0, 30.0  # tests change them


@contextmanager
def progress_lines(what: str) -> Iterator[ProgressCallback]:
    """Print a line FIRST_S seconds after the start, and then one every NEXT_S seconds, until the end.

    Yields a callback: call it with the name of the current work, the bytes done and all bytes. Short work and
    work without a name print nothing.
    """
    at, ended = _Position(what), threading.Event()

    def watch() -> None:
        begun, pause = monotonic(), FIRST_S
        while not ended.wait(pause):
            if line := at.line(monotonic() - begun):
                tell(line)
            pause = NEXT_S

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield at.move
    finally:
        ended.set()
        watcher.join()


class _Position:
    """The last reported progress."""

    def __init__(self, what: str) -> None:
        self._last = (what, 0, 0)

    def move(self, what: str, done: int, total: int) -> None:
        """Record the progress."""
        self._last = (what, min(done, total), total)

    def line(self, seconds: float) -> str:
        """Format the progress with an estimate of the time left; "" before the first report."""
        what, done, total = self._last
        if not total:
            return what
        left = f", about {seconds * (total - done) / done:,.0f} s left" if done else ""
        return f"{what}: {100 * done // total} %{left}"


@contextmanager
def bytes_bar(what: str = "") -> Iterator[ProgressCallback]:
    """Yield a callback that updates the bar: call it with the current work, the bytes done and all bytes.

    The first argument is shown before the first call.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        with progress_lines(what) as notice:
            yield notice
        return
    columns = (
        BarColumn(bar_width=40 if console.width >= 80 else 10),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with RoomyProgress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what)

        def moved(what: str, done: int, total: int) -> None:
            progress.update(task, description=what, completed=min(done, total), total=total)

        yield moved


@contextmanager
def counting_bar(what: str, rank: int = 0) -> Iterator[Callable[[int, int], None]]:
    """Yield a callback that updates the bar of rank 0: call it with the items done and all items."""
    if rank > 0:
        yield lambda done, total: None
        return
    with bytes_bar(what) as notice:
        yield lambda done, total: notice(f"{done:,} of {total:,}, {what}", done, total)
