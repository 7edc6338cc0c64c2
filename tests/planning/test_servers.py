"""What a plan says of a run whose batches servers make."""

from __future__ import annotations

from dataclasses import replace

import pytest

from khop.planning.constants import MEASURED
from khop.planning.prediction import PROCESS_BYTES, predict
from khop.planning.servers import ServersPrediction, predict_servers
from khop.planning.workload import Cluster, GraphSize, Run

PRODUCTS = GraphSize(2_449_029, 122_900_000, 400)
RUN = Run((15, 10, 5), 4096)
FOUR = Cluster(machines=4, cores=2, network_gbit=10, latency_s=1e-4, cache_share=0.2)


def planned(servers: int = 2, run: Run = RUN, cluster: Cluster = FOUR) -> ServersPrediction:
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


def test_a_number_of_servers_is_positive() -> None:
    with pytest.raises(ValueError, match="servers -1: must be 1 or more"):
        planned(servers=-1)
