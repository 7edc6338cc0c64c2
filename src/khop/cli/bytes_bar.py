"""A progress bar for long reads and writes on stderr, removed at the end; lines if it is no terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

from khop.cli.progress_lines import progress_lines
from khop.cli.terminal import RoomyProgress
from khop.graph.progress import ProgressCallback


@contextmanager
def bytes_bar(what: str = "") -> Iterator[ProgressCallback]:
    """Yield a callback that moves the bar: call it with the current work, the bytes done and all bytes.

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
    """Yield a callback that moves the bar of rank 0: call it with the items done and all items."""
    if rank > 0:
        yield lambda done, total: None
        return
    with bytes_bar(what) as notice:
        yield lambda done, total: notice(f"{done:,} of {total:,}, {what}", done, total)
