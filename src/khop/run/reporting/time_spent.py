"""Time of a training run by stage and rank, read from its steps.jsonl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from khop.run.profile import RankSummary, Summary
from khop.training.step_clock import BESIDE, LATE, STAGES, WITHIN

WARM_UP = (
    5  # first steps, which are skipped if there are enough others, because they set up memory and threads
)
_BINS = 60  # of a timeline

Step = Mapping[str, Any]  # a line of steps.jsonl


@dataclass(frozen=True)
class TimeSpent:
    """Time of all ranks over the steps of a run."""

    summary: Summary
    timeline: tuple[tuple[Mapping[str, float], ...], ...]  # seconds by stage, for each rank and bin of steps
    steps: int


def time_spent(steps: Sequence[Step], workers: int) -> TimeSpent | None:
    """Summarize the steps of a run with `workers` sampler threads per rank; None without timed steps.

    Spans of single threads are not recorded in training, so the shares of busy cores are unknown.
    """
    timed = [step for step in steps if _seconds(step)]
    counted = timed[WARM_UP:] if len(timed) > 2 * WARM_UP else timed
    ranks = len(_seconds(counted[-1])["computing"]) if counted else 0
    counted = [step for step in counted if len(_seconds(step)["computing"]) == ranks]
    if not any(_of_rank(step, rank, stage) for step in counted for rank in range(ranks) for stage in WITHIN):
        return None
    summaries = tuple(_rank_summary(rank, ranks, counted, workers) for rank in range(ranks))
    decided_by, first_waits_s = _critical_path(counted, ranks)
    timeline = tuple(_timeline(rank, counted) for rank in range(ranks))
    return TimeSpent(Summary(summaries, decided_by, first_waits_s), timeline, len(counted))


def _seconds(step: Step) -> Mapping[str, list[float]]:
    """Return the seconds of a step by stage, a value per rank."""
    found: Mapping[str, list[float]] = step.get("seconds") or {}
    return found if isinstance(found.get("computing"), list) else {}


def _of_rank(step: Step, rank: int, stage: str) -> float:
    values = _seconds(step).get(stage, ())
    return values[rank] if rank < len(values) else 0.0


def _last(step: Step, ranks: int) -> int:
    """Return the rank that was last at the gradient exchange."""
    delays = [_of_rank(step, rank, LATE) for rank in range(ranks)]
    return delays.index(max(delays))


def _critical_path(steps: Sequence[Step], ranks: int) -> tuple[dict[str, float], float]:
    """Return the last ranks' seconds by stage, and their waits for the first batches of epochs."""
    decided_by, first_waits_s = dict.fromkeys(WITHIN, 0.0), 0.0
    for step in steps:
        last = _last(step, ranks)
        for stage in WITHIN:
            decided_by[stage] += _of_rank(step, last, stage)
        if step.get("step") == 0:
            first_waits_s += _of_rank(step, last, "waiting")
    return decided_by, first_waits_s


def _rank_summary(rank: int, ranks: int, steps: Sequence[Step], workers: int) -> RankSummary:
    of_stage = {stage: sum(_of_rank(step, rank, stage) for step in steps) for stage in STAGES}
    waited_for = dict.fromkeys((other for other in range(ranks) if other != rank), 0.0)
    for step in steps:
        last = _last(step, ranks)
        if last != rank:
            behind = _of_rank(step, last, LATE) - _of_rank(step, rank, LATE)
            waited_for[last] += min(behind, _of_rank(step, rank, "communicating"))
    seconds = sum(of_stage[stage] for stage in WITHIN)
    seeds = sum(step.get("seeds", 0) for step in steps) / max(1, ranks)
    return RankSummary(
        rank,
        "",  # the hosts of a run are not recorded
        max(1, workers),
        len(steps),
        max(seconds, 1e-9),
        of_stage,
        waited_for,
        None,
        seeds / max(seconds, 1e-9),
        0.0,
        0.0,
    )


def _timeline(rank: int, steps: Sequence[Step]) -> tuple[dict[str, float], ...]:
    """Return the mean seconds of a step by stage, in at most _BINS consecutive groups of steps."""
    size = -(-len(steps) // _BINS)
    groups = [steps[first : first + size] for first in range(0, len(steps), size)]
    return tuple(
        {
            stage: sum(_of_rank(step, rank, stage) for step in group) / len(group)
            for stage in (*BESIDE, *WITHIN)
        }
        for group in groups
    )
