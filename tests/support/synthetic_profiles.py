"""Records of steps that never were, with times as wanted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from khop.batch import Span
from khop.run.profile import MeasuredStep, RankRecord

MAIN, WORKER = "MainThread", "khop-worker-0"
STEADY = {"sampling": 0.01, "gathering": 0.01, "waiting": 0.001, "moving": 0.001, "forward": 0.05,
          "backward": 0.04, "update": 0.005, "saving": 0.001}  # fmt: skip


def records_of(*ranks: Mapping[str, float], steps: int = 10, epoch: int = 10, workers: int = 1,
               num_bytes: int = 1000, cores: float = 1.0, exchange: float = 0.001,
               wait_at_start: float = 0.0,
               traffic: Sequence[Mapping[str, float]] = ({},)) -> tuple[RankRecord, ...]:  # fmt: skip
    """Ranks whose every step takes these seconds by stage or part; the exchange ends for all at once.

    Each epoch of so many steps begins with a wait of so long for its first batch. Steps have `traffic` in
    turn.
    """
    done: list[list[MeasuredStep]] = [[] for _ in ranks]
    now = 100.0
    for number in range(steps):
        at_start = wait_at_start if number % epoch == 0 else 0.0
        ready = [_ready(now, {**STEADY, **seconds}, at_start) for seconds in ranks]
        end = max(ready) + exchange
        for rank, seconds in enumerate(ranks):
            given = {**STEADY, **seconds}
            spans = _spans(now, given, at_start, ready[rank], end, is_alone=len(ranks) == 1)
            cpu, counts = cores * spans[-1].ended, traffic[number % len(traffic)]
            step = MeasuredStep(*divmod(number, epoch), spans, 100, 1000, num_bytes, cpu, counts)
            done[rank].append(step)
        now = max(steps_of[-1].spans[-1].ended for steps_of in done)
    return tuple(RankRecord(rank, "here", workers, tuple(s)) for rank, s in enumerate(done))


def _ready(now: float, given: Mapping[str, float], at_start: float) -> float:
    return now + at_start + sum(given[name] for name in ("waiting", "moving", "forward", "backward"))


def _spans(now: float, given: Mapping[str, float], at_start: float, ready: float, end: float, *,
           is_alone: bool) -> tuple[Span, ...]:  # fmt: skip
    sampled, gathered = now - given["gathering"], now
    beside = (
        Span("sampling", sampled - given["sampling"], sampled, WORKER),
        Span("gathering", sampled, gathered, WORKER),
    )
    lengths = [("waiting", "", given["waiting"] + at_start), ("moving", "", given["moving"]),
               ("computing", "forward", given["forward"]), ("computing", "backward", given["backward"]),
               ("communicating", "gradients", 0.0 if is_alone else end - ready),
               ("computing", "update", given["update"]), ("saving", "", given["saving"])]  # fmt: skip
    moments = [now]
    for *_, seconds in lengths:
        moments.append(moments[-1] + seconds)
    own = (
        Span(stage, begun, ended, MAIN, part)
        for (stage, part, _), (begun, ended) in zip(lengths, pairwise(moments), strict=True)
    )
    return (*beside, *own)
