"""What a plan says of a run whose batches servers make."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

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


def test_the_table_of_the_documentation_has_the_planned_figures() -> None:
    """The page gives rows for 25 Gbit/s, and steps and seeds per second for 100 Gbit/s in brackets."""
    page = (Path(__file__).parents[2] / "docs" / "servers.md").read_text()
    rows = re.findall(
        r"^\| (one machine|worker mode, 4[^|]*|4 trainers, . servers?) \|(.*)\|$", page, re.MULTILINE
    )
    found = {
        name: [float(n.replace(",", "")) for n in re.findall(r"\d[\d,]*(?:\.\d+)?", text)]
        for name, text in rows
    }
    graph, run = GraphSize(111_059_956, 1_615_685_872, 512), Run((15, 10, 5), 4096)
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
        memory = [both[0].server_memory / 1e9, both[0].trainer_memory / 1e9] if servers == 1 else []
        steps = [each.step for each in both]
        times = [*(1e3 * step for step in steps), *(4096 / step for step in steps)]
        expected[name] = [*memory, both[0].sent_bytes / 1e6, *times]
    assert found.keys() == expected.keys()
    for name, figures in expected.items():
        assert found[name] == pytest.approx(figures, rel=0.03), name


def test_a_number_of_servers_is_positive() -> None:
    with pytest.raises(ValueError, match="servers -1: must be 1 or more"):
        planned(servers=-1)
