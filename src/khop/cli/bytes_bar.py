"""A progress bar for long reads and writes, shown on stderr if it is a terminal, and removed at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

from khop.cli.terminal import RoomyProgress
from khop.graph.progress import ProgressCallback


@contextmanager
def bytes_bar() -> Iterator[ProgressCallback]:
    """Yield a callback that moves the bar: call it with the current work, the bytes done and all bytes."""
    console = Console(stderr=True)
    columns = (
        BarColumn(bar_width=40 if console.width >= 80 else 10),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with RoomyProgress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task("")

        def notice(what: str, done: int, total: int) -> None:
            progress.update(task, description=what, completed=done, total=total)

        yield notice
