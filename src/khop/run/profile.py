"""Records of a profile, their summary by stage and rank, and their export as Chrome trace events.

Times of all ranks are on one clock. Perfetto and chrome://tracing open the export.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from khop.batch import Batch, Span, num_bytes
from khop.loading.source import SECONDS, SERVER, SERVER_BYTES, SERVER_RETRIES
from khop.training.step_clock import BESIDE, STAGES, WITHIN, TimedStep, Unwatched, seconds_by_stage


@dataclass(frozen=True)
class MeasuredStep:
    """One optimizer step of one rank."""

    epoch: int
    step: int
    spans: tuple[Span, ...]  # on rank 0's clock
    seeds: int  # nodes or links in this rank's share of the batch
    edges: int
    num_bytes: int  # size of the batch
    cpu_at: float  # CPU time of the process at the end of the step, in seconds over all cores
    traffic: Mapping[str, float] = field(default_factory=dict)  # data exchanged for the batch

    @property
    def own(self) -> tuple[Span, ...]:
        """The spans of the training thread, in order."""
        return tuple(span for span in self.spans if span.stage not in BESIDE)

    @property
    def ready_at(self) -> float | None:
        """The time when this rank's gradients were ready; None if nothing was exchanged."""
        return next((span.begun for span in self.spans if span.part == "gradients"), None)


@dataclass(frozen=True)
class RankRecord:
    """The steps of one rank."""

    rank: int
    host: str
    workers: int  # threads that made the batches
    steps: tuple[MeasuredStep, ...]

    def to_bytes(self) -> bytes:
        """Serialize the record for another rank."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def of_bytes(cls, content: bytes) -> RankRecord:
        """Read a record from the result of `to_bytes`."""
        values = json.loads(content)
        steps = (
            MeasuredStep(**{**step, "spans": tuple(Span(**span) for span in step["spans"])})
            for step in values.pop("steps")
        )
        return cls(**values, steps=tuple(steps))


class StepRecorder(Unwatched):
    """An observer that records every step of this rank."""

    def __init__(self) -> None:
        self._steps: list[MeasuredStep] = []

    def timed(self, step: TimedStep) -> None:
        """Record the step and the size of its batch."""
        batch = step.batch
        self._steps.append(
            MeasuredStep(
                batch.epoch,
                batch.step,
                step.spans,
                _num_seeds(batch),
                _num_edges(batch),
                num_bytes(batch),
                time.process_time(),
                dict(batch.traffic),
            )
        )

    def record(self, rank: int, host: str, workers: int, clock_offset: float) -> RankRecord:
        """Return all recorded steps, with times on a clock `clock_offset` seconds behind this one."""
        steps = (_shifted(step, clock_offset) for step in self._steps)
        return RankRecord(rank, host, workers, tuple(steps))


def without_first(records: Sequence[RankRecord], count: int) -> tuple[RankRecord, ...]:
    """Drop the first steps of all ranks, which set up memory, threads and connections."""
    return tuple(replace(record, steps=record.steps[count:]) for record in records)


def _shifted(step: MeasuredStep, seconds: float) -> MeasuredStep:
    spans = (replace(span, begun=span.begun - seconds, ended=span.ended - seconds) for span in step.spans)
    return replace(step, spans=tuple(spans))


def _num_seeds(batch: Batch) -> int:
    if batch.links:
        return sum(rows.num_links for rows in batch.links.values())
    return sum(ids.numel() for ids in batch.seed_nodes.values())


def _num_edges(batch: Batch) -> int:
    """Count the drawn edges. If the blocks are views of a subgraph, its edges count once."""
    sample = batch.sample
    graphs = sample.blocks if sample.subgraph is None else (sample.subgraph,)
    return sum(edges.indices.numel() for graph in graphs for edges in graph.adjacencies.values())


@dataclass(frozen=True)
class RankSummary:
    """The summary of one rank over all steps. `seconds` is the time of the training thread."""

    rank: int
    host: str
    workers: int
    steps: int
    seconds: float
    # Seconds by stage. Sampling and gathering run in other threads; the other stages add up to `seconds`.
    of_stage: Mapping[str, float]
    waited_for: Mapping[int, float]  # other rank -> seconds of waiting in which it was the last rank
    busy_cores: float | None  # mean number of cores used by the process; None for a single step
    seeds_per_s: float
    edges_per_s: float
    batch_bytes: float

    def share(self, stage: str) -> float:
        """Return the share of the time in a stage, 0 to 1.

        For sampling and gathering, which run in other threads, the unit is one thread.
        """
        return self.of_stage[stage] / self.seconds

    @property
    def workers_busy(self) -> float:
        """The share of the time for which the sampler threads were busy, 0 to 1."""
        return min(1.0, sum(self.share(stage) for stage in BESIDE) / self.workers)


@dataclass(frozen=True)
class ServerSummary:
    """The batches that one server has made for all ranks."""

    batches: int
    retries: int  # attempts at other servers, or refused as busy, before these batches
    num_bytes: float  # received
    wait_s: float  # from the first attempts to the first pieces of the answers, summed

    @property
    def mean_wait_s(self) -> float:
        """Mean wait for the beginning of an answer, in seconds."""
        return self.wait_s / self.batches


@dataclass(frozen=True)
class Summary:
    """The summary of all ranks. The critical path consists, in each step, of the last rank to exchange."""

    ranks: tuple[RankSummary, ...]
    decided_by: Mapping[str, float] = field(default_factory=dict)  # stage -> seconds on the critical path
    first_waits_s: float = 0.0  # seconds on the critical path of waiting for the first batches of epochs
    servers: Mapping[int, ServerSummary] = field(default_factory=dict)  # by number in `traffic`

    def share(self, stage: str) -> float:
        """Return the share of the critical path in a stage, 0 to 1."""
        return self.decided_by[stage] / sum(self.decided_by.values())

    @property
    def waited(self) -> float:
        """The share of the ranks' time in which they waited for each other, 0 to 1."""
        waited = sum(sum(rank.waited_for.values()) for rank in self.ranks)
        return waited / sum(rank.seconds for rank in self.ranks)

    def lost_to(self, rank: int) -> float:
        """Return the share of the time for which the other ranks waited for this one, 0 to 1."""
        others = [other for other in self.ranks if other.rank != rank]
        waited = sum(other.waited_for.get(rank, 0.0) for other in others)
        return waited / sum(other.seconds for other in others) if others else 0.0


def summarized(records: Sequence[RankRecord]) -> Summary:
    """Summarize ranks with the same steps, at least one."""
    last = [_last(steps) for steps in zip(*(record.steps for record in records), strict=True)]
    decided_by = dict.fromkeys(WITHIN, 0.0)
    first_waits_s = 0.0
    for number, index in enumerate(last):
        step = records[index].steps[number]
        seconds = seconds_by_stage(step.spans)
        for stage in WITHIN:
            decided_by[stage] += seconds[stage]
        if step.step == 0:
            first_waits_s += seconds["waiting"]
    ranks = tuple(_summary_of(index, records, last) for index in range(len(records)))
    return Summary(ranks, decided_by, first_waits_s, _servers(records))


def _servers(records: Sequence[RankRecord]) -> dict[int, ServerSummary]:
    """Summarize the batches of each server; nothing if this process made them."""
    counted: dict[int, list[Mapping[str, float]]] = {}
    for step in (step for record in records for step in record.steps):
        if SERVER in step.traffic:
            counted.setdefault(int(step.traffic[SERVER]), []).append(step.traffic)

    def total(of: Sequence[Mapping[str, float]], name: str) -> float:
        return sum(traffic[name] for traffic in of)

    return {
        number: ServerSummary(
            len(of), int(total(of, SERVER_RETRIES)), total(of, SERVER_BYTES), total(of, SECONDS)
        )
        for number, of in sorted(counted.items())
    }


def _last(steps: Sequence[MeasuredStep]) -> int:
    """Return the index of the rank whose gradients were ready last."""
    ready = [step.ready_at or 0.0 for step in steps]
    return ready.index(max(ready))


def _summary_of(index: int, records: Sequence[RankRecord], last: Sequence[int]) -> RankSummary:
    record = records[index]
    of_stage = dict.fromkeys(STAGES, 0.0)
    waited_for = {other.rank: 0.0 for other in records if other.rank != record.rank}
    for number, step in enumerate(record.steps):
        for stage, of_step in seconds_by_stage(step.spans).items():
            of_stage[stage] += of_step
        if last[number] != index:
            latest = records[last[number]]
            waited_for[latest.rank] += _waited(step, latest.steps[number])
    seconds = sum(of_stage[stage] for stage in WITHIN)
    return RankSummary(
        record.rank,
        record.host,
        record.workers,
        len(record.steps),
        seconds,
        of_stage,
        waited_for,
        _busy_cores(record.steps),
        sum(step.seeds for step in record.steps) / seconds,
        sum(step.edges for step in record.steps) / seconds,
        sum(step.num_bytes for step in record.steps) / len(record.steps),
    )


def _waited(step: MeasuredStep, latest: MeasuredStep) -> float:
    """Return the seconds in a step's exchange before the last rank joined."""
    if step.ready_at is None or latest.ready_at is None:
        return 0.0
    exchange = sum(span.seconds for span in step.spans if span.part == "gradients")
    return min(latest.ready_at - step.ready_at, exchange)


def _busy_cores(steps: Sequence[MeasuredStep]) -> float | None:
    if len(steps) < 2:
        return None
    elapsed = steps[-1].own[-1].ended - steps[0].own[-1].ended
    return (steps[-1].cpu_at - steps[0].cpu_at) / elapsed


Event = dict[str, object]
_MAIN = "MainThread"


def chrome_trace(records: Sequence[RankRecord]) -> dict[str, object]:
    """Return trace events: one process per rank, with its training thread and its sampler threads.

    Times are in microseconds from the first event of any rank. Events without duration are left out.
    """
    spans = [span for record in records for step in record.steps for span in step.spans]
    zero = min((span.begun for span in spans), default=0.0)
    events = [event for record in records for event in (*_names(record), *_bars(record, zero))]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def threads_of(record: RankRecord) -> list[str]:
    """Return the names of the threads: the training thread, then the sampler threads."""
    names = {span.thread for step in record.steps for span in step.spans}
    return sorted(names, key=lambda name: (name != _MAIN, len(name), name))


def _names(record: RankRecord) -> Iterator[Event]:
    pid = record.rank
    named = {"name": f"rank {record.rank} (host {record.host})"}
    yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": named}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}}
    for number, thread in enumerate(threads_of(record)):
        shown = "training" if thread == _MAIN else thread
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": number, "args": {"name": shown}}
        yield {
            "ph": "M",
            "name": "thread_sort_index",
            "pid": pid,
            "tid": number,
            "args": {"sort_index": number},
        }


def _bars(record: RankRecord, zero: float) -> Iterator[Event]:
    numbers = {thread: number for number, thread in enumerate(threads_of(record))}
    for step in record.steps:
        for span in step.spans:
            # Round both ends to nanoseconds, so that adjacent spans stay adjacent and do not overlap.
            begun, ended = (round((moment - zero) * 1e9) for moment in (span.begun, span.ended))
            if ended > begun:
                yield {
                    "ph": "X",
                    "name": span.part or span.stage,
                    "cat": span.stage,
                    "pid": record.rank,
                    "tid": numbers[span.thread],
                    "ts": begun / 1000,
                    "dur": (ended - begun) / 1000,
                    "args": {"epoch": step.epoch, "step": step.step},
                }
