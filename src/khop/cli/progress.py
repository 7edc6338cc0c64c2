"""Training progress: bars on a terminal, lines in logs and pipes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from time import monotonic

import torch
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Column

from khop.cli.lines import tell
from khop.cli.terminal import RoomyProgress, say
from khop.kernels.choice import why_no_kernels
from khop.run.reporting.run_summary import SCORES, Record, baselines_of, number, scores_of
from khop.training.run_log import EPOCHS
from khop.training.step_clock import Observer, TimedStep


@contextmanager
def watching(console: Console) -> Iterator[Observer]:
    """Yield an observer that shows the training on `console` until the end of the block."""
    if not console.is_terminal:
        yield Lines(console)
        return
    with RoomyProgress(*_columns(console.width), console=console, transient=True) as bars:
        yield Bars(bars)


def _columns(width: int) -> list[ProgressColumn]:
    """Return the columns of each bar that fit a terminal of this width."""
    done, note = MofNCompleteColumn(table_column=Column(no_wrap=True)), TextColumn("{task.fields[note]}")
    if width < 50:
        return [TextColumn("{task.description}"), done, note]
    name = TextColumn("{task.description:<10}")
    if width < 80:
        return [name, BarColumn(bar_width=10), done, note]
    return [name, BarColumn(bar_width=24), done, TimeElapsedColumn(), note, TextColumn("{task.fields[pace]}")]


class Lines:
    """Lines for logs and pipes: one at the start, one per epoch, and one per minute in long epochs."""

    def __init__(self, console: Console, every_s: float = 60.0) -> None:
        self.console = console
        self.epochs = 0
        self.steps = 0
        self.every_s = every_s
        self.last_line_s = monotonic()

    def started(self, epochs: int, steps: int) -> None:
        """Print the length of the training, before the first batch is ready."""
        self.epochs, self.steps = epochs, steps
        self._say(f"training starts: epochs {epochs}, batches per epoch {steps}")

    def stepped(self, epoch: int, step: int, loss: float) -> None:
        """Print the position, at most once a minute."""
        if monotonic() - self.last_line_s >= self.every_s:
            self._say(f"epoch {epoch + 1}/{self.epochs}  batch {step + 1}/{self.steps}  loss {loss:.4f}")

    def timed(self, step: TimedStep) -> None:
        """Do nothing."""

    def evaluating(self, done: int, total: int) -> None:
        """Print the progress of an evaluation, at most once a minute."""
        if monotonic() - self.last_line_s >= self.every_s:
            self._say(f"evaluating {done}/{total}")

    def evaluated(self, record: Record) -> None:
        """Print the line of an evaluation within an epoch."""
        self._say(self._line(record))

    def epoch_ended(self, record: Record) -> None:
        """Print the epoch's line."""
        self._say(self._line(record))

    def warned(self, sentence: str) -> None:
        """Print a warning on stderr, as errors are."""
        tell(sentence)

    def _say(self, line: str) -> None:
        say(self.console, line)
        self.last_line_s = monotonic()

    def _line(self, record: Record) -> str:
        return epoch_line(record, self.epochs, self.console.width if self.console.is_terminal else None)


class Bars:
    """Bars for epochs, steps and evaluation, below the lines of finished epochs."""

    def __init__(self, bars: Progress) -> None:
        self.bars = bars
        self.lines = Lines(bars.console)
        self.epochs = bars.add_task("epochs", note="", pace="", total=None, visible=False)
        self.steps = bars.add_task("steps", note="", pace="", total=None, visible=False)
        self.evaluation = bars.add_task("evaluating", note="", pace="", total=None, visible=False)

    def started(self, epochs: int, steps: int) -> None:
        """Set the lengths of the bars."""
        self.lines.epochs = epochs
        self.bars.update(self.epochs, total=epochs, visible=True)
        self.bars.update(self.steps, total=steps, visible=True)

    def stepped(self, epoch: int, step: int, loss: float) -> None:
        """Move the bar of the steps, and show the loss and the speed."""
        self._switch(shown=self.steps, hidden=self.evaluation)
        speed = self.bars.tasks[self.steps].speed
        pace = "" if speed is None else f"{speed:.1f} batches/s"
        self.bars.update(self.epochs, completed=epoch)
        self.bars.update(self.steps, completed=step + 1, note=f"loss {loss:.4f}", pace=pace)

    def timed(self, step: TimedStep) -> None:
        """Do nothing."""

    def evaluating(self, done: int, total: int) -> None:
        """Show the bar of the evaluation instead of the bar of the steps."""
        self._switch(shown=self.evaluation, hidden=self.steps)
        self.bars.update(self.evaluation, completed=done, total=total)

    def evaluated(self, record: Record) -> None:
        """Print the line of an evaluation within an epoch above the bars."""
        self.lines.evaluated(record)
        self._switch(shown=self.steps, hidden=self.evaluation)

    def epoch_ended(self, record: Record) -> None:
        """Print the epoch's line above the bars."""
        self.lines.epoch_ended(record)
        self.bars.update(self.epochs, advance=1, note=" ".join(_scores(record, ("val",))))
        self.bars.reset(self.steps, note="", pace="")

    def warned(self, sentence: str) -> None:
        """Print a warning above the bars."""
        say(self.bars.console, f"khop: {sentence}")

    def _switch(self, shown: TaskID, hidden: TaskID) -> None:
        self.bars.update(hidden, visible=False)
        self.bars.update(shown, visible=True)


def epoch_line(record: Record, epochs: int, width: int | None = None) -> str:
    """Format a line of metrics.jsonl, or an evaluation of steps.jsonl, for people. Epochs count from 1.

    Within an epoch, the epoch number has a fraction. To fit in `width`, values are left out in this order:
    baselines, training scores, test scores, seconds, loss. The logs contain all of them.
    """
    seconds = record["seconds"]
    assert isinstance(seconds, Mapping)
    digits = len(str(epochs))
    done = f"{number(record[EPOCHS]):.4g}" if EPOCHS in record else f"{number(record['epoch']) + 1:.0f}"
    words = {
        "epoch": [f"epoch {done:>{digits}}/{epochs}"],
        "loss": [f"loss {number(record['loss']):.4f}"] if "loss" in record else [],
        **{split: _scores(record, (split,)) for split in SCORES},
        "seconds": [f"{number(seconds.get('total', seconds.get('evaluating'))):.1f} s"],
    }
    compared = words | {split: _compared(record, split) for split in SCORES}
    line = "  ".join(chain(*compared.values()))
    if width is None or len(line) <= width:
        return line
    for least in ("train", "test", "seconds", "loss"):
        line = "  ".join(chain(*words.values()))
        if width is None or len(line) <= width:
            return line
        del words[least]
    return "  ".join(chain(*words.values()))


def beside_scores(outcome: Mapping[str, object]) -> dict[str, object]:
    """Return an outcome with each score and its baselines as one string, such as "0.81 (majority 0.32)"."""
    of_scores = baselines_of(outcome)
    hidden = {name for of_score in of_scores.values() for name in of_score}
    found: dict[str, object] = {}
    for name, value in outcome.items():
        if name in of_scores:
            baselines = (f"{word} {number(outcome[of]):.4g}" for of, word in of_scores[name].items())
            found[name] = f"{number(value):.4g} ({', '.join(baselines)})"
        elif name not in hidden:
            found[name] = value
    return found


def two_columns(outcome: Mapping[str, object]) -> list[str]:
    """Format an outcome for people: one line per name and value."""
    width = max(map(len, outcome)) + 2
    return [
        name.replace("_", " ").ljust(width) + (f"{value:.4g}" if isinstance(value, float) else str(value))
        for name, value in outcome.items()
    ]


def _scores(record: Record, splits: tuple[str, ...]) -> list[str]:
    """Format the scores of some splits, without baselines."""
    return list(_texts(record, splits))


def _compared(record: Record, split: str) -> list[str]:
    """Format the scores of a split, each followed by its baselines."""
    found = []
    for text, baselines in _texts(record, (split,)).items():
        words = [f"{word} {number(record[name]):.4f}" for name, word in baselines.items()]
        found.append(f"{text} ({', '.join(words)})" if words else text)
    return found


def _texts(record: Record, splits: tuple[str, ...]) -> dict[str, dict[str, str]]:
    """Format the scores of some splits, each with the keys and names of its baselines."""
    of_scores = baselines_of(record)
    hidden = {name for of_score in of_scores.values() for name in of_score}
    return {
        f"{name.replace('_', ' ')} {value:.4f}": of_scores.get(name, {})
        for name, value in scores_of(record).items()
        if name.startswith(splits) and name not in hidden
    }


EVERY_S = 5.0


@contextmanager
def kernel_lines(rank: int, device: torch.device) -> Iterator[None]:
    """Print the progress of kernel compilation in the block, on rank 0 if its device is a GPU.

    Nothing is printed if the cache has all kernels.
    """
    if rank > 0 or device.type != "cuda" or why_no_kernels(device.index) is not None:
        yield
        return
    from khop.kernels.triton.launch import compilations_told

    with compilations_told(CompilationLines()):
        yield


class CompilationLines:
    """Prints a line for the first compiled kernel, and then at most one every EVERY_S seconds."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._next_s = clock()

    def __call__(self, count: int) -> None:
        """Report that `count` kernels have been compiled so far."""
        if self._clock() >= self._next_s:
            tell(f"compiling GPU kernels, once on this machine: {count} so far")
            self._next_s = self._clock() + EVERY_S
