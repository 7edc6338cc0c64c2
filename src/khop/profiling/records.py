"""Records of a profile: the steps of each rank, with times on one clock."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from khop.batch import Batch, Span, num_bytes
from khop.training.observer import Unwatched
from khop.training.step_clock import BESIDE, TimedStep


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


class Recorder(Unwatched):
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
