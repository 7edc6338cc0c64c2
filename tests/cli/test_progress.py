"""A log gets lines, a terminal gets bars as well."""

from __future__ import annotations

import io

from rich.console import Console

from khop.cli.progress import Lines, beside_scores, epoch_line, two_columns, watching
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
