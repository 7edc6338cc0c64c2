"""What a profile keeps of a step, and how it comes from another rank."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from khop.api.loader import Loader
from khop.profiling.records import RankRecord, Recorder, without_first
from khop.sampling.neighbor import Expansion, NeighborSampler
from khop.training.step_clock import TimedStep
from support.small_graphs import one_type
from support.small_runs import SmallRun
from support.synthetic_profiles import records_of


def test_a_record_comes_as_it_was() -> None:
    (record,) = records_of({"waiting": 0.1})
    assert RankRecord.of_bytes(record.to_bytes()) == record


def test_a_recorder_keeps_every_step_of_a_run(tmp_path: Path) -> None:
    recorder = Recorder()
    SmallRun(tmp_path, observer=recorder).trainer().rehearse(7)
    record = recorder.record(1, "there", 2, clock_offset=1000.0)
    assert (record.rank, record.host, record.workers) == (1, "there", 2)
    assert [(step.epoch, step.step) for step in record.steps] == [divmod(n, 5) for n in range(7)]
    assert [step.seeds for step in record.steps] == [8, 8, 8, 8, 6, 8, 8]
    assert all(step.edges > 0 and step.num_bytes > 0 for step in record.steps)
    assert [step.ready_at is None for step in record.steps] == [False] * 7
    (unshifted, *_) = recorder.record(0, "here", 2, clock_offset=0.0).steps
    for span, other in zip(record.steps[0].spans, unshifted.spans, strict=True):
        assert span.begun == pytest.approx(other.begun - 1000)
        assert span.seconds == pytest.approx(other.seconds, abs=1e-6)


def test_the_edges_of_a_subgraph_count_once_though_every_layer_sees_them() -> None:
    graph = one_type()
    counts: list[int] = []
    for expansion in Expansion:
        sampler = NeighborSampler(graph.store, [2, 2], expansion=expansion)
        batch = Loader(sampler, torch.arange(9), 9).batch(0, 0)
        recorder = Recorder()
        recorder.timed(TimedStep(batch, ()))
        (step,) = recorder.record(0, "here", 1, 0.0).steps
        counts.append(step.edges)
        graphs = batch.blocks if batch.sample.subgraph is None else [batch.sample.subgraph]
        assert step.edges == sum(a.indices.numel() for g in graphs for a in g.adjacencies.values())
    assert len(set(counts)) == 2


def test_steps_that_warm_up_are_left_out() -> None:
    records = without_first(records_of({}, {}, steps=8), 3)
    assert [[(step.epoch, step.step) for step in record.steps] for record in records] == [
        [(0, number) for number in range(3, 8)]
    ] * 2
