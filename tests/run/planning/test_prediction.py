"""What a plan says of memory, traffic and time.

The cost of a drawn edge follows the curve that was measured, at the height of this machine.

One machine reads what its memory does not hold.

The fewest machines are enough, and one fewer is not.

What a plan says of a run whose batches servers make.
"""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from khop.graph.partitions.placements import LANES
from khop.run.planning.prediction import (
    MEASURED,
    MEASURED_EDGES,
    PROCESS_BYTES,
    SCALING,
    EdgePlacement,
    FromDisk,
    Prediction,
    ServersPrediction,
    fewest_machines,
    from_disk,
    predict,
    predict_servers,
    scaled_sample_ns,
    training_flop,
)
from khop.run.planning.workload import Cluster, GraphSize, PlannedRun

FOUR = Cluster(machines=4, cores=2, network_gbit=10, latency_s=1e-4, cache_share=0.2)

PRODUCTS = GraphSize(2_449_029, 122_900_000, 400)

RUN = PlannedRun((15, 10, 5), 4096)


def both(
    graph: GraphSize = PRODUCTS, run: PlannedRun = RUN, cluster: Cluster = FOUR
) -> tuple[Prediction, Prediction]:
    replicated, partitioned = predict(graph, run, cluster, MEASURED)
    assert (replicated.placement, partitioned.placement) == tuple(EdgePlacement)
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
    def name(cluster: Cluster, run: PlannedRun = RUN) -> str:
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


def test_the_curve_goes_through_what_was_measured() -> None:
    height = MEASURED.sample_ns / scaled_sample_ns(MEASURED, SCALING[3][0]) * SCALING[3][1]
    costs = [scaled_sample_ns(replace(MEASURED, sample_ns=height), edges) for edges, _ in SCALING]
    assert costs == pytest.approx([cost for _, cost in SCALING])
    assert scaled_sample_ns(MEASURED, MEASURED_EDGES) == pytest.approx(MEASURED.sample_ns)


def test_it_lies_between_its_points_and_stays_beyond_them() -> None:
    for (low, below), (high, above) in pairwise(SCALING):
        ratio = scaled_sample_ns(MEASURED, (low * high) ** 0.5) / scaled_sample_ns(MEASURED, low)
        assert min(1, above / below) < ratio < max(1, above / below)
    assert scaled_sample_ns(MEASURED, 1e11) == scaled_sample_ns(MEASURED, SCALING[-1][0])
    assert scaled_sample_ns(MEASURED, 0) == scaled_sample_ns(MEASURED, SCALING[0][0])


PAPERS = GraphSize(111_059_956, 1_615_685_872, 256)
FROM_DISK_RUN = PlannedRun((15, 10, 5), 3 * 1024)
THREE = Cluster(machines=3, cores=2, network_gbit=10, latency_s=1e-4, cache_share=0.2)


def of(gigabytes: float, graph: GraphSize = PAPERS, reads_per_s: float = 80e3) -> FromDisk:
    constants = replace(MEASURED, disk_reads_per_s=reads_per_s)
    found = from_disk(graph, FROM_DISK_RUN, THREE, constants, gigabytes * 1e9)
    assert found is not None
    return found


def test_a_cold_batch_takes_a_read_for_each_page_with_rows() -> None:
    found = of(24)
    assert found.nodes == pytest.approx(
        predict(PAPERS, replace(FROM_DISK_RUN, batch_size=1024), replace(THREE, machines=1), MEASURED)[
            0
        ].traffic.nodes
    )
    assert 0.95 * found.nodes / 80e3 < found.cold < found.nodes / 80e3
    assert 0 < found.read_rows < found.nodes
    assert 0.95 * found.read_rows / 80e3 < found.reading < found.read_rows / 80e3
    assert found.step >= found.reading


def test_pages_are_those_that_random_rows_touch() -> None:
    small = GraphSize(1_000_000, 10_000_000, 256)  # 16 rows on a page
    found = of(1e6, small)
    rows = torch.randperm(small.nodes, generator=torch.Generator().manual_seed(1))[: round(found.nodes)]
    assert found.cold * 80e3 == pytest.approx((rows // 16).unique().numel(), rel=0.01)


def test_more_memory_and_a_faster_disk_are_never_worse() -> None:
    assert of(20).read_rows > of(30).read_rows > of(40).read_rows
    assert of(24, reads_per_s=40e3).step > of(24).step >= of(24, reads_per_s=1e9).step
    assert of(200).read_rows == 0


def test_rows_of_many_pages_take_the_time_of_their_bytes() -> None:
    wide = of(1e6, replace(PAPERS, feature_bytes=1 << 20))  # batches alone take terabytes
    assert wide.cold > wide.nodes * (1 << 20) / MEASURED.disk_bytes_per_s
    assert of(24, replace(PAPERS, feature_bytes=0)).read_rows == 0


def test_memory_without_room_for_the_edges_is_too_small() -> None:
    assert from_disk(PAPERS, FROM_DISK_RUN, THREE, MEASURED, 5e9) is None


HUGE = GraphSize(1_000_000_000, 100_000_000_000, 512)
EACH = 1024
SIXTEEN = Cluster(machines=16, cores=32, network_gbit=25, latency_s=1e-4, cache_share=0.2)
MACHINES_RUN = PlannedRun((15, 10, 5), 16 * EACH)


def memory(machines: int) -> float:
    """What each machine needs where edges are shared out."""
    run = replace(MACHINES_RUN, batch_size=EACH * machines)
    _, partitioned = predict(HUGE, run, replace(SIXTEEN, machines=machines), MEASURED)
    return partitioned.memory.total


@pytest.mark.parametrize("gigabytes", [64, 256, 4000])
def test_they_are_enough_and_one_fewer_is_not(gigabytes: int) -> None:
    found = fewest_machines(HUGE, MACHINES_RUN, SIXTEEN, MEASURED, gigabytes * 1e9)[EdgePlacement.PARTITIONED]
    assert found is not None
    assert memory(found) <= gigabytes * 1e9
    assert found == 1 or memory(found - 1) > gigabytes * 1e9


def test_no_number_is_enough_where_each_has_all_edges() -> None:
    found = fewest_machines(HUGE, MACHINES_RUN, SIXTEEN, MEASURED, 256e9)
    assert found[EdgePlacement.REPLICATED] is None


def test_memory_that_is_none_is_named() -> None:
    with pytest.raises(ValueError, match="memory 0 GB: must be a number above 0"):
        fewest_machines(HUGE, MACHINES_RUN, SIXTEEN, MEASURED, 0)


def planned(servers: int = 2, run: PlannedRun = RUN, cluster: Cluster = FOUR) -> ServersPrediction:
    return predict_servers(PRODUCTS, run, cluster, servers, MEASURED)


def test_servers_hold_the_graph_and_batches_and_trainers_hold_batches() -> None:
    found = planned()
    nodes, edges = PRODUCTS.nodes, PRODUCTS.edges
    graph = 4 * edges + 24 * nodes + 400 * nodes
    assert found.server_memory == pytest.approx(graph + (2 + 2 * 4) * found.batch_bytes + PROCESS_BYTES)
    assert planned(servers=4).server_memory == found.server_memory
    alone = predict(PRODUCTS, replace(RUN, batch_size=1024), replace(FOUR, machines=1), MEASURED)[0]
    assert found.trainer_memory == pytest.approx(4 * found.batch_bytes + alone.memory.training)


def test_all_batches_leave_the_servers_and_reach_the_trainers() -> None:
    for servers in (1, 2, 4, 8):
        found = planned(servers)
        assert servers * found.sent_bytes == pytest.approx(FOUR.machines * found.batch_bytes)
        assert found.server_network == pytest.approx(1.05 / 0.85 * found.sent_bytes * 8 / 10e9)


def test_a_server_costs_what_one_machine_costs_and_the_way() -> None:
    alone = predict(PRODUCTS, replace(RUN, batch_size=1024), replace(FOUR, machines=1), MEASURED)[0]
    found = planned(servers=4)
    copying = found.batch_bytes / MEASURED.exchange_bytes_per_s / FOUR.cores
    assert found.server_cores == pytest.approx(alone.times.sampling + alone.times.gathering + copying)
    assert found.trainer_cores == pytest.approx(alone.times.training + alone.times.calls + copying)


def test_the_slowest_part_decides_and_enough_servers_leave_it_to_the_trainers() -> None:
    assert planned(servers=1).bottleneck.startswith("server")
    enough = planned(servers=1).enough
    assert enough > 1
    found = planned(servers=enough)
    assert found.bottleneck.startswith("trainer")
    assert found.step == max(found.trainer_cores, found.trainer_network)
    assert found.enough <= enough
    assert planned(servers=enough - 1).bottleneck.startswith("server")


def test_the_table_of_the_documentation_has_the_planned_figures() -> None:
    """The page gives rows for 25 Gbit/s, and steps and seeds per second for 100 Gbit/s in brackets."""
    page = (Path(__file__).parents[3] / "docs" / "servers.md").read_text()
    rows = re.findall(
        r"^\| (one machine|worker mode, 4[^|]*|4 trainers, . servers?) \|(.*)\|$", page, re.MULTILINE
    )
    found = {
        name: [float(n.replace(",", "")) for n in re.findall(r"\d[\d,]*(?:\.\d+)?", text)]
        for name, text in rows
    }
    graph, run = GraphSize(111_059_956, 1_615_685_872, 512), PlannedRun((15, 10, 5), 4096)
    slow, fast = (Cluster(4, 32, gbit, 1e-4, cache_share=0.2) for gbit in (25, 100))
    alone = predict(graph, replace(run, batch_size=1024), replace(slow, machines=1), MEASURED)[0]
    step = alone.times.step
    expected = {"one machine": [alone.memory.total / 1e9, 0, step * 1e3, 1024 / step]}
    modes = [predict(graph, run, cluster, MEASURED)[0] for cluster in (slow, fast)]
    name, steps = "worker mode, 4 machines, all edges on each", [mode.times.step for mode in modes]
    sent = modes[0].memory.total / 1e9, modes[0].traffic.bytes / 1e6
    expected[name] = [*sent, *(1e3 * step for step in steps), *(4096 / step for step in steps)]
    for servers, name in ((1, "4 trainers, 1 server"), (4, "4 trainers, 4 servers")):
        both = [predict_servers(graph, run, cluster, servers, MEASURED) for cluster in (slow, fast)]
        memory = [both[0].server_memory / 1e9, both[0].trainer_memory / 1e9]
        steps = [each.step for each in both]
        times = [*(1e3 * step for step in steps), *(4096 / step for step in steps)]
        expected[name] = [*memory, both[0].sent_bytes / 1e6, *times]
    assert found.keys() == expected.keys()
    for name, figures in expected.items():
        assert found[name] == pytest.approx(figures, rel=0.03), name


def test_a_number_of_servers_is_positive() -> None:
    with pytest.raises(ValueError, match="servers -1: must be 1 or more"):
        planned(servers=-1)
