"""What a profile keeps of a step, and how it comes from another rank.

A summary adds up, and finds who was waited for.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.api.loader import Loader
from khop.run.profile import RankRecord, StepRecorder, summarized, without_first
from khop.sampling.sampler import Expansion, NeighborSampler
from khop.training.step_clock import WITHIN, TimedStep
from support.small_graphs import one_type
from support.small_runs import SmallRun
from support.synthetic_profiles import STEADY, records_of


def test_a_record_comes_as_it_was() -> None:
    (record,) = records_of({"waiting": 0.1})
    assert RankRecord.of_bytes(record.to_bytes()) == record


def test_a_recorder_keeps_every_step_of_a_run(tmp_path: Path) -> None:
    recorder = StepRecorder()
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
        recorder = StepRecorder()
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


Seconds = st.floats(0.001, 0.2)
Rank = st.fixed_dictionaries({"waiting": Seconds, "forward": Seconds, "update": st.just(0.005)})


@given(st.lists(Rank, min_size=1, max_size=4))
def test_the_shares_of_a_rank_and_of_the_path_that_decided_add_up_to_all(
    ranks: list[dict[str, float]],
) -> None:
    summary = summarized(records_of(*ranks))
    assert sum(summary.share(stage) for stage in WITHIN) == pytest.approx(1)
    for rank in summary.ranks:
        assert sum(rank.share(stage) for stage in WITHIN) == pytest.approx(1)
        assert sum(rank.waited_for.values()) <= rank.of_stage["communicating"] + 1e-9


@given(st.lists(Rank, min_size=2, max_size=4))
def test_ranks_wait_for_the_slowest_and_for_no_other(ranks: list[dict[str, float]]) -> None:
    takes = [{**STEADY, **rank}["waiting"] + {**STEADY, **rank}["forward"] for rank in ranks]
    slowest = takes.index(max(takes))
    summary = summarized(records_of(*ranks))
    for rank, seconds in zip(summary.ranks, takes, strict=True):
        late = takes[slowest] - seconds
        for other, waited in rank.waited_for.items():
            assert waited == pytest.approx(10 * late if other == slowest else 0.0, abs=1e-6)
    assert summary.lost_to(slowest) >= max(summary.lost_to(rank) for rank in range(len(ranks)))


def test_the_path_that_decided_is_that_of_the_rank_that_came_last() -> None:
    summary = summarized(records_of({"forward": 0.1}, {"waiting": 0.2}, exchange=0.01))
    assert summary.decided_by["waiting"] == pytest.approx(10 * 0.2)
    assert summary.decided_by["communicating"] == pytest.approx(10 * 0.01)
    assert summary.lost_to(1) > summary.lost_to(0) == 0


def test_one_process_does_not_wait() -> None:
    (rank,) = summarized(records_of({})).ranks
    assert rank.waited_for == {}
    assert rank.of_stage["communicating"] == 0
    assert rank.seconds == pytest.approx(10 * 0.098)
    assert rank.seeds_per_s == pytest.approx(100 / 0.098)
    assert rank.edges_per_s == pytest.approx(1000 / 0.098)
    assert rank.batch_bytes == 1000
    assert rank.busy_cores == pytest.approx(1.0)
    assert rank.workers_busy == pytest.approx(0.02 / 0.098)


def test_of_one_step_it_is_not_known_how_busy_the_cores_were() -> None:
    (rank,) = summarized(records_of({}, steps=1)).ranks
    assert rank.busy_cores is None


def test_waits_for_first_batches_are_counted_separately() -> None:
    summary = summarized(records_of({}, epoch=5, wait_at_start=0.5))
    assert summary.first_waits_s == pytest.approx(2 * 0.501)


def test_batches_of_servers_are_counted_by_server() -> None:
    def counts(server: int, seconds: float, retries: int) -> dict[str, float]:
        return {"server": server, "seconds": seconds, "server_retries": retries, "server_bytes": 100}

    given = [counts(0, 0.1, 0), counts(1, 0.2, 2)]
    summary = summarized(records_of({}, {}, traffic=given))
    assert {number: (s.batches, s.retries, s.num_bytes) for number, s in summary.servers.items()} == {
        0: (10, 0, 1000),
        1: (10, 20, 1000),
    }
    assert summary.servers[1].mean_wait_s == pytest.approx(0.2)
    assert summarized(records_of({})).servers == {}
