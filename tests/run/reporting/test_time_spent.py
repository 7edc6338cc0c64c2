"""The time of a run by rank and stage, from lines of steps.jsonl written out by hand."""

from __future__ import annotations

import pytest

from khop.run.bottleneck import Kind, Machine, bottleneck
from khop.run.reporting.time_spent import time_spent
from run.reporting.support import config_of


def step(
    number: int, computing: list[float], late: list[float], communicating: list[float]
) -> dict[str, object]:
    zeros = [0.0] * len(computing)
    seconds = {"late": late, "sampling": zeros, "gathering": zeros, "waiting": zeros, "moving": zeros,
               "computing": computing, "communicating": communicating, "saving": zeros}  # fmt: skip
    return {"epoch": 0, "step": number, "loss": 1.0, "seeds": 8, "seconds": seconds}


def test_a_rank_that_others_wait_for_is_found() -> None:
    found = time_spent([step(n, [1.0, 2.0], [0.0, 1.0], [1.1, 0.1]) for n in range(20)], 2)
    assert found is not None
    assert found.steps == 15  # without the warm-up
    assert found.summary.ranks[0].waited_for == {1: pytest.approx(15.0)}
    assert found.summary.ranks[1].waited_for == {0: 0.0}
    assert found.summary.decided_by["computing"] == pytest.approx(30.0)
    assert found.summary.lost_to(1) == pytest.approx(1 / 2.1)
    assert bottleneck(found.summary, config_of(), Machine(2, False)).kind is Kind.SLOW_RANK


def test_few_steps_all_count_and_waits_for_first_batches_are_apart() -> None:
    first = step(0, [1.0], [0.0], [0.0])
    first["seconds"]["waiting"] = [4.0]  # type: ignore[index]
    found = time_spent([first, step(1, [1.0], [0.0], [0.0])], 2)
    assert found is not None
    assert (found.steps, found.summary.first_waits_s) == (2, 4.0)
    assert bottleneck(found.summary, config_of(), Machine(2, False)).kind is Kind.FIRST_BATCHES


def test_a_timeline_has_at_most_sixty_groups_and_keeps_the_sum() -> None:
    steps = [step(n, [n / 1000], [0.0], [0.0]) for n in range(1000)]
    found = time_spent(steps, 1)
    assert found is not None
    (groups,) = found.timeline
    assert len(groups) <= 60
    assert groups[0]["computing"] < groups[-1]["computing"]


def test_steps_without_times_give_nothing() -> None:
    assert time_spent([], 1) is None
    assert time_spent([{"epoch": 0, "step": 0, "loss": 1.0}], 1) is None
    assert time_spent([step(0, [0.0], [0.0], [0.0])], 1) is None


def test_a_run_resumed_on_other_ranks_is_shown_as_its_last_part_was() -> None:
    steps = [step(n, [1.0], [0.0], [0.0]) for n in range(6)]
    steps += [step(n, [1.0, 1.0], [0.0, 0.0], [0.1, 0.1]) for n in range(6, 9)]
    found = time_spent(steps, 1)
    assert found is not None
    assert (len(found.summary.ranks), found.steps) == (2, 3)
