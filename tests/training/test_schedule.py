"""The learning rate rises and falls as it was told to, also over a stop."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from khop.training.schedule import Plateau, Schedule
from support.small_runs import STEPS, Interrupting, SmallRun, without_seconds


def rates(schedule: Schedule, updates: int) -> list[float]:
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    over = schedule.over(optimizer, updates)
    found = []
    for _ in range(updates):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        over.step()
    return found


def test_it_rises_over_the_warm_up_and_falls_to_the_end() -> None:
    assert rates(Schedule(), 3) == [1.0, 1.0, 1.0]
    assert rates(Schedule("linear"), 4) == [1.0, 0.75, 0.5, 0.25]
    assert rates(Schedule("constant", warmup=3), 5) == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates(Schedule("cosine", warmup=1), 5) == pytest.approx(
        [0.5, 1.0, 0.853553, 0.5, 0.146447], abs=1e-6
    )
    assert rates(Schedule("linear", warmup=5), 2) == pytest.approx([1 / 6, 2 / 6])


def test_a_run_that_was_stopped_continues_with_the_rate_that_was_next(tmp_path: Path) -> None:
    schedule = Schedule("cosine", warmup=4)
    whole = SmallRun(tmp_path / "a").with_(schedule=schedule)
    trainer = whole.trainer()
    expected = trainer.fit().records
    stopped = SmallRun(tmp_path / "b", observer=Interrupting(1, 2)).with_(schedule=schedule)
    with pytest.raises(KeyboardInterrupt):
        stopped.trainer().fit()
    again = SmallRun(tmp_path / "b").with_(schedule=schedule).trainer()
    again.resume()
    assert again.optimizer.param_groups[0]["lr"] == 0.01 * schedule.factor(3 * STEPS, STEPS + 3)
    assert without_seconds(again.fit().records) == without_seconds(expected)
    constant = SmallRun(tmp_path / "c").trainer().fit().records
    assert without_seconds(constant) != without_seconds(expected)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"course": "step"}, "course 'step': must be one of"),
        ({"warmup": -1}, "warmup -1: must be 0 or more updates"),
    ],
)
def test_what_is_no_schedule_is_named(given: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Schedule(**given)  # type: ignore[arg-type]


def test_a_plateau_reduces_the_rate_while_the_score_does_not_improve(tmp_path: Path) -> None:
    scores = [0.5, 0.4, 0.5, 0.6, 0.6, 0.6, 0.1]
    seen: list[float] = []

    def run(name: str, epochs: int) -> SmallRun:
        def evaluate() -> dict[str, float]:
            score = scores[trainer.state.epoch]
            seen.append(trainer.optimizer.param_groups[0]["lr"])
            return {"val": score}

        small = SmallRun(tmp_path / name, evaluate=evaluate)
        small = small.with_(epochs=epochs, learning_rate=0.08, schedule=Schedule(plateau=Plateau(0.5, 2)))
        trainer = small.trainer()
        if epochs > 4:
            trainer.resume()
        trainer.fit()
        return small

    run("a", 4)
    run("a", 7)
    assert seen == [0.08, 0.08, 0.08, 0.04, 0.04, 0.04, 0.02]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [((1.0, 2), "factor 1.0: must be above 0 and below 1"), ((0.5, 0), "patience 0: must be a whole number")],
)
def test_a_plateau_that_cannot_be_is_named(given: tuple[float, int], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Plateau(*given)
