"""What a profile measures: each rank's steps, with times of one clock."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from khop.batch import Batch, Span, num_bytes
from khop.training.observer import Unwatched
from khop.training.step_clock import BESIDE, TimedStep


@dataclass(frozen=True)
class MeasuredStep:
    """One update of one rank."""

    epoch: int
    step: int
    spans: tuple[Span, ...]  # on rank 0's clock
    seeds: int  # of this rank's share, nodes or links
    edges: int
    num_bytes: int  # of the batch
    cpu_at: float  # seconds of all cores that the process had used when it was over

    @property
    def own(self) -> tuple[Span, ...]:
        """Those of the thread that trains, one after the other."""
        return tuple(span for span in self.spans if span.stage not in BESIDE)

    @property
    def ready_at(self) -> float | None:
        """When this rank had its gradients; None where nothing was exchanged."""
        return next((span.begun for span in self.spans if span.part == "gradients"), None)


@dataclass(frozen=True)
class RankRecord:
    """What one rank did, step by step."""

    rank: int
    host: str
    workers: int  # threads that made its batches
    steps: tuple[MeasuredStep, ...]

    def to_bytes(self) -> bytes:
        """For another rank."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def of_bytes(cls, content: bytes) -> RankRecord:
        """What another rank's `to_bytes` gave."""
        values = json.loads(content)
        steps = (
            MeasuredStep(**{**step, "spans": tuple(Span(**span) for span in step["spans"])})
            for step in values.pop("steps")
        )
        return cls(**values, steps=tuple(steps))


class Recorder(Unwatched):
    """An observer that keeps every step of this rank."""

    def __init__(self) -> None:
        self._steps: list[MeasuredStep] = []

    def timed(self, step: TimedStep) -> None:
        """Keep it, and how large its batch was."""
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
            )
        )

    def record(self, rank: int, host: str, workers: int, clock_offset: float) -> RankRecord:
        """All that was kept, on the clock that this one is `clock_offset` seconds ahead of."""
        steps = (_shifted(step, clock_offset) for step in self._steps)
        return RankRecord(rank, host, workers, tuple(steps))


def without_first(records: Sequence[RankRecord], count: int) -> tuple[RankRecord, ...]:
    """The same ranks without their first steps, in which memory, threads and connections were new."""
    return tuple(replace(record, steps=record.steps[count:]) for record in records)


def _shifted(step: MeasuredStep, seconds: float) -> MeasuredStep:
    spans = (replace(span, begun=span.begun - seconds, ended=span.ended - seconds) for span in step.spans)
    return replace(step, spans=tuple(spans))


def _num_seeds(batch: Batch) -> int:
    if batch.links:
        return sum(rows.num_links for rows in batch.links.values())
    return sum(ids.numel() for ids in batch.seed_nodes.values())


def _num_edges(batch: Batch) -> int:
    """Edges that were drawn: of a subgraph once, where its blocks are views of it."""
    sample = batch.sample
    graphs = sample.blocks if sample.subgraph is None else (sample.subgraph,)
    return sum(edges.indices.numel() for graph in graphs for edges in graph.adjacencies.values())
