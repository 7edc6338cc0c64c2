"""What a plan says of memory, traffic and time."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from khop.partition.placements import LANES
from khop.planning.constants import MEASURED
from khop.planning.prediction import Placement, Prediction, predict, training_flop
from khop.planning.workload import Cluster, GraphSize, Run

PRODUCTS = GraphSize(2_449_029, 122_900_000, 400)
RUN = Run((15, 10, 5), 4096)
FOUR = Cluster(machines=4, cores=2, network_gbit=10, latency_s=1e-4, cache_share=0.2)


def both(
    graph: GraphSize = PRODUCTS, run: Run = RUN, cluster: Cluster = FOUR
) -> tuple[Prediction, Prediction]:
    replicated, partitioned = predict(graph, run, cluster, MEASURED)
    assert (replicated.placement, partitioned.placement) == tuple(Placement)
    return replicated, partitioned


def test_bytes_on_the_wire_take_as_long_as_the_network_says() -> None:
    for found in both():
        assert found.times.network == pytest.approx(1.05 / 0.85 * found.traffic.bytes * 8 / 10e9)
    replicated, partitioned = both()
    assert replicated.traffic.row_bytes == pytest.approx(replicated.traffic.fetched_rows * (400 + 4))
    assert replicated.traffic.hop_bytes == 0
    assert partitioned.traffic.hop_bytes > 0
    assert (replicated.traffic.collectives, partitioned.traffic.collectives) == (3, 12)


def test_a_sum_is_that_of_its_parts() -> None:
    for found in both():
        assert found.memory.total == pytest.approx(sum(asdict(found.memory).values()))
        times = found.times
        own = (times.sampling, times.gathering, times.training, times.exchanging, times.calls)
        assert times.cores == pytest.approx(sum(own))
        assert times.step == max(times.cores, times.lanes, times.trainer)
        assert times.step >= max(times.network, times.waiting)


def test_memory_is_that_of_the_arrays() -> None:
    replicated, partitioned = both(cluster=replace(FOUR, cache_share=0))
    nodes, edges = PRODUCTS.nodes, PRODUCTS.edges
    assert replicated.memory.topology == 4 * edges + 24 * nodes
    assert partitioned.memory.topology == edges + 18 * nodes
    assert replicated.memory.features == partitioned.memory.features == 100 * nodes
    assert replicated.memory.cache == 0
    assert both()[0].memory.cache == pytest.approx(0.2 * 100 * nodes + nodes)


def test_nothing_gets_worse_by_more_of_it() -> None:
    for better in (
        replace(FOUR, network_gbit=25),
        replace(FOUR, latency_s=0),
        replace(FOUR, cores=8),
        replace(FOUR, cache_share=0.5),
    ):
        for found, usual in zip(both(cluster=better), both(), strict=True):
            assert found.times.step <= usual.times.step
    fetched = [
        both(cluster=replace(FOUR, cache_share=share))[0].traffic.fetched_rows for share in (0, 0.2, 0.5, 3)
    ]
    assert fetched == sorted(fetched, reverse=True)
    assert fetched[0] == both()[0].traffic.remote_rows
    assert fetched[-1] == pytest.approx(0, abs=1e-3)
    eight = both(cluster=replace(FOUR, machines=8))[1].memory
    assert eight.topology + eight.features < both()[1].memory.topology + both()[1].memory.features


def test_what_holds_a_step_up_is_named() -> None:
    def name(cluster: Cluster, run: Run = RUN) -> str:
        return both(run=run, cluster=cluster)[1].times.bottleneck

    assert name(FOUR) == "training"
    assert name(replace(FOUR, network_gbit=0.1)) == "network"
    assert name(replace(FOUR, latency_s=0.5)) == "latency"
    assert name(replace(FOUR, machines=1), replace(RUN, batch_size=16_384, hidden=1, outputs=1)) in {
        "gathering", "sampling",
    }  # fmt: skip


def test_small_steps_take_what_calls_take() -> None:
    tiny = replace(RUN, batch_size=4, fanouts=(1,), hidden=1)
    for found in both(run=tiny):
        assert found.times.bottleneck == "calls"
        exchanging = found.traffic.collectives * MEASURED.exchange_s
        assert found.times.calls == pytest.approx(MEASURED.step_s + exchanging)


def test_messages_are_announced_before_they_are_sent() -> None:
    """As was seen between two hosts 5 ms apart: 10 ms for an exchange, 30 for gradients and losses."""
    two = replace(FOUR, machines=2, latency_s=0.005, network_gbit=1000)
    for found in both(cluster=two):
        assert found.times.batch_messages == pytest.approx(0.01 * found.traffic.collectives)
        assert found.times.gradient_messages == pytest.approx(0.03)
        assert found.times.waiting == max(found.times.batch_messages / LANES, 0.03)


def test_answers_are_filled_up_to_the_fanout() -> None:
    """A frontier node takes its id, how many neighbors it has, and room for as many as are drawn."""
    sparse = GraphSize(1_000_000, 500_000, 4)
    bounded = both(sparse, replace(RUN, fanouts=(1, 8)))[1].traffic
    unbounded = both(sparse, replace(RUN, fanouts=(1, -1)))[1].traffic
    assert bounded.hop_bytes > unbounded.hop_bytes


def test_a_machine_alone_sends_nothing() -> None:
    for found in both(cluster=replace(FOUR, machines=1)):
        traffic = found.traffic
        assert (traffic.bytes, traffic.remote_rows, traffic.collectives, found.times.waiting) == (0, 0, 0, 0)


def test_a_hundred_billion_edges_are_shared_out() -> None:
    huge = GraphSize(1_000_000_000, 100_000_000_000, 512)
    cluster = Cluster(machines=64, cores=32, network_gbit=25, latency_s=1e-4, cache_share=0.2)
    replicated, partitioned = both(huge, replace(RUN, batch_size=64 * 1024), cluster)
    assert replicated.memory.total > 400e9
    assert partitioned.memory.total < 50e9
    assert partitioned.times.bottleneck == "network"


def test_the_work_of_a_step_is_that_of_its_products() -> None:
    """The arithmetic of docs/performance.md's training step: 15.5 Gflop forward, 34.6 in all."""
    rows = [115_196.0, 13_786.0, 1024.0]
    widths = [100, 256, 256, 47]
    forward = sum(4 * n * i * o for n, i, o in zip(rows, widths, widths[1:], strict=False))
    assert forward == pytest.approx(15.5e9, rel=0.01)
    assert training_flop(widths, rows) == pytest.approx(34.6e9, rel=0.01)
