"""What TensorBoard itself reads from a run's event files."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from khop.training.step_clock import STAGES
from khop.training.tensorboard import TensorBoard, check_tensorboard
from support.small_runs import STEPS, SmallRun


def curves(folder: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return accumulator


def points(read: EventAccumulator, name: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in read.Scalars(name)]


def test_curves_are_those_of_the_logs(tmp_path: Path) -> None:
    with closing(TensorBoard(tmp_path / "curves", 'graph = "toy"')) as observer:
        SmallRun(tmp_path, observer=observer).trainer().fit()
    read = curves(tmp_path / "curves")
    steps, epochs = (
        [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        for name in ("steps.jsonl", "metrics.jsonl")
    )
    assert points(read, "step/loss") == [
        (number, pytest.approx(record["loss"], rel=1e-6)) for number, record in enumerate(steps, 1)
    ]
    for name in ("loss", "val_accuracy", "train_accuracy"):
        assert points(read, f"epoch/{name}") == [
            (record["step"], pytest.approx(record[name], rel=1e-6)) for record in epochs
        ]
    for stage in STAGES:
        assert [step for step, _ in points(read, f"seconds/{stage}")] == list(range(1, 3 * STEPS + 1))
    (text,) = read.Tensors("config/text_summary")
    assert b'graph = "toy"' in text.tensor_proto.string_val[0]


def test_a_run_that_continues_shows_every_update_once(tmp_path: Path) -> None:
    run = SmallRun(tmp_path)
    with closing(TensorBoard(tmp_path / "curves", "")) as observer:
        SmallRun(tmp_path, observer=observer).with_(epochs=2).trainer().fit()
        observer.stepped(2, 0, 9.0)  # an update after the last checkpoint: killed, and made again
    with closing(TensorBoard(tmp_path / "curves", "")) as observer:
        again = SmallRun(run.out, observer=observer).trainer()
        again.resume()
        again.fit()
    read = curves(tmp_path / "curves")
    assert [step for step, _ in points(read, "step/loss")] == list(range(1, 3 * STEPS + 1))
    assert 9.0 not in [loss for _, loss in points(read, "step/loss")]
    assert [step for step, _ in points(read, "epoch/loss")] == [5, 10, 15]


def test_nothing_is_written_for_nothing(tmp_path: Path) -> None:
    with closing(TensorBoard(tmp_path / "curves", "")) as observer:
        observer.started(1, 5)
    assert not (tmp_path / "curves").exists()


def test_without_the_package_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    check_tensorboard()
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "tensorboard")
    with pytest.raises(ValueError, match=r"not installed: pip install tensorboard$"):
        check_tensorboard()
