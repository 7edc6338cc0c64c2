"""A log gets lines, a terminal gets bars as well.

Lines of the command while kernels of a GPU are compiled.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest
import torch
from rich.console import Console

from khop.cli import progress as kernels
from khop.cli.progress import (
    CompilationLines,
    Lines,
    beside_scores,
    epoch_line,
    kernel_lines,
    two_columns,
    watching,
)
from khop.cli.terminal import say
from khop.run.reporting.run_summary import Record, scores_of
from khop.training.step_clock import Observer


def record_of(epoch: int) -> Record:
    return {
        "epoch": epoch,
        "step": 3 * (epoch + 1),
        "loss": 0.51237,
        "val_accuracy": 0.75,
        "train_accuracy": 0.8125,
        "test_accuracy": 0.5,
        "seconds": {"sampling": 1.0, "total": 3.25},
    }


def drive(watcher: Observer) -> None:
    watcher.started(epochs=12, steps=3)
    for step in range(3):
        watcher.stepped(0, step, 0.5)
    watcher.evaluating(2, 4)
    watcher.evaluating(4, 4)
    watcher.epoch_ended(record_of(0))
    watcher.stepped(1, 0, 0.25)


def test_a_line_counts_epochs_from_one_and_has_the_scores_in_order() -> None:
    line = "epoch  1/12  loss 0.5124  train accuracy 0.8125  val accuracy 0.7500  test accuracy 0.5000  3.2 s"
    assert epoch_line(record_of(0), 12) == line
    assert list(scores_of(record_of(0))) == ["train_accuracy", "val_accuracy", "test_accuracy"]


def test_baselines_stand_behind_their_scores_where_there_is_room() -> None:
    record = record_of(0) | {"val_majority_accuracy": 0.25, "val_f1_macro": 0.7, "val_majority_f1_macro": 0.1}
    line = epoch_line(record, 12)
    assert "val accuracy 0.7500 (majority 0.2500)  val f1 macro 0.7000 (majority 0.1000)" in line
    assert "majority" not in epoch_line(record, 12, width=120)
    assert "test accuracy" in epoch_line(record, 12, width=120)
    assert beside_scores({"run": "a", "val_mrr": 0.5, "val_popularity_mrr": 0.25, "seconds": 2.0}) == {
        "run": "a",
        "val_mrr": "0.5 (popularity 0.25)",
        "seconds": 2.0,
    }


START = "training starts: epochs 12, batches per epoch 3"


def test_where_there_is_no_terminal_there_is_a_line_at_the_start_and_one_per_epoch() -> None:
    out = io.StringIO()
    with watching(Console(file=out, width=40)) as watcher:
        drive(watcher)
    assert out.getvalue().splitlines() == [START, epoch_line(record_of(0), 12)]


def test_long_epochs_have_lines_between() -> None:
    out = io.StringIO()
    drive(Lines(Console(file=out), every_s=0.0))
    steps = [f"epoch 1/12  batch {step}/3  loss 0.5000" for step in (1, 2, 3)]
    evaluations = ["evaluating 2/4", "evaluating 4/4"]
    after = "epoch 2/12  batch 1/3  loss 0.2500"
    assert out.getvalue().splitlines() == [START, *steps, *evaluations, epoch_line(record_of(0), 12), after]


def test_a_terminal_shows_loss_speed_evaluation_and_keeps_the_lines() -> None:
    out = io.StringIO()
    console = Console(file=out, width=120, force_terminal=True, color_system=None)
    with watching(console) as watcher:
        drive(watcher)
    shown = out.getvalue()
    assert epoch_line(record_of(0), 12) in shown
    for words in ("loss 0.2500", "evaluating", "1/12", "val accuracy 0.7500"):
        assert words in shown


def test_an_evaluation_alone_shows_its_own_bar_alone() -> None:
    out = io.StringIO()
    with watching(Console(file=out, width=120, force_terminal=True, color_system=None)) as watcher:
        watcher.evaluating(1, 4)
    assert "evaluating" in out.getvalue()
    assert "epochs" not in out.getvalue()


def test_lines_are_printed_as_they_are() -> None:
    out = io.StringIO()
    long = "runs/[red]" + "x" * 100
    say(Console(file=out, width=40), *two_columns({"run": long, "best_epoch": 3, "test_accuracy": 0.81234}))
    assert out.getvalue().splitlines() == [
        f"run            {long}",
        "best epoch     3",
        "test accuracy  0.8123",
    ]


def test_a_terminal_shows_the_speed_once_it_is_known() -> None:
    out = io.StringIO()
    with watching(Console(file=out, width=120, force_terminal=True, color_system=None)) as watcher:
        watcher.started(1, 50)
        for step in range(50):
            watcher.stepped(0, step, 0.5)
    assert "batches/s" in out.getvalue()


CUDA = torch.device("cuda", 0)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[int], None]]:
    """A stand-in for the listener of Triton on a GPU that runs kernels: the functions that are told."""
    listening: list[Callable[[int], None]] = []

    @contextmanager
    def compilations_told(tell: Callable[[int], None]) -> Iterator[None]:
        listening.append(tell)
        yield
        listening.remove(tell)

    module = ModuleType("compilations")
    module.compilations_told = compilations_told  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "khop.kernels.triton.launch", module)
    monkeypatch.setattr(kernels, "why_no_kernels", lambda index: None)
    return listening


def test_a_cold_cache_is_shown_and_a_warm_one_is_not(
    told: list[Callable[[int], None]], capsys: pytest.CaptureFixture[str]
) -> None:
    with kernel_lines(0, CUDA):
        pass
    assert capsys.readouterr() == ("", "")
    with kernel_lines(0, CUDA):
        (tell,) = told
        tell(1)
    assert told == []
    assert capsys.readouterr().err == "khop: compiling GPU kernels, once on this machine: 1 so far\n"


def test_lines_follow_each_other_after_a_pause(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 1.0, 1.0, 3.0, 5.9, 6.0, 6.0])
    lines = CompilationLines(lambda: next(times))
    for count in range(1, 5):
        lines(count)
    counts = [line.partition(": ")[2].split(": ")[1] for line in capsys.readouterr().err.splitlines()]
    assert counts == ["1 so far", "4 so far"]


@pytest.mark.parametrize(("rank", "device"), [(1, CUDA), (0, torch.device("cpu"))])
def test_only_rank_0_with_a_gpu_listens(
    told: list[Callable[[int], None]], rank: int, device: torch.device
) -> None:
    with kernel_lines(rank, device):
        assert told == []


def test_a_gpu_that_kernels_cannot_run_on_is_not_watched(
    told: list[Callable[[int], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "why_no_kernels", lambda index: "Triton is too old")
    with kernel_lines(0, CUDA):
        assert told == []
