"""Servers as real processes, and everything that may happen to them or to a trainer.

Whatever happens, the batches of an epoch are those of a local loader, in their order, each once.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

pytest.importorskip("pyarrow.flight", reason="pip install pyarrow")

import khop
from khop.errors import PeerLost
from khop.graph.build import write_graph
from khop.graph.features.store import Rows
from khop.graph.tables import EdgeTable, NodeTable
from khop.loading.ordered_map import InFlight
from khop.servers.access import Access, CallContext, Limits
from khop.servers.errors import Cancelled, WrongGraph
from khop.servers.flight_client import connected
from support.commands import free_port
from support.gate import WAIT_S
from support.resolved_names import resolve
from support.same_samples import assert_same_epoch
from support.server_processes import ENVIRONMENT, Server, Starts, until_lost
from support.small_folders import write_learnable_graph


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_learnable_graph(tmp_path_factory.mktemp("graph") / "shop", nodes=2000)


def loader_of(graph: khop.Graph) -> khop.Loader:
    sampler = khop.NeighborSampler(graph, fanouts=[5, 3])
    return khop.Loader(
        sampler, graph.split("train"), 32, shuffle=True, columns=["x"], seed_columns=["category"]
    )


def remote(running: Sequence[Server], *, attempt: float = 5.0, deadline: float = 30.0) -> khop.Loader:
    graph = khop.connect([each.address for each in running], attempt=attempt, deadline=deadline)
    return loader_of(graph)


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[khop.Batch]:
    return list(loader_of(khop.open_graph(folder)).epoch(0))


def retries(batches: Sequence[khop.Batch]) -> float:
    return sum(batch.traffic["server_retries"] for batch in batches)


def test_two_servers_share_an_epoch_and_one_is_killed(
    folder: Path, expected: list[khop.Batch], start: Starts
) -> None:
    running = [start(folder), start(folder)]
    found = []
    for batch in remote(running).epoch(0):
        found.append(batch)
        if batch.step == 10:
            running[0].kill()
    assert_same_epoch(found, expected)
    assert retries(found) > 0
    by_server = [sum(batch.traffic["server"] == number for batch in found[:10]) for number in (0, 1)]
    assert min(by_server) >= 3


@pytest.mark.long
def test_a_killed_server_that_is_started_again_is_asked_again(
    folder: Path, expected: list[khop.Batch], start: Starts
) -> None:
    server = start(folder)
    found = []
    for batch in remote([server]).epoch(0):
        found.append(batch)
        if batch.step == 5:
            server.kill()
            server = start(folder, listen=server.address)
    assert_same_epoch(found, expected)
    assert int(str(server.status()["answers"])) >= len(expected) - 12


@pytest.mark.long
def test_a_stopped_server_costs_one_attempt(folder: Path, expected: list[khop.Batch], start: Starts) -> None:
    running = [start(folder), start(folder)]
    found = []
    for batch in remote(running, attempt=4.0).epoch(0):
        found.append(batch)
        if batch.step == 5:
            running[0].send(signal.SIGSTOP)
    assert_same_epoch(found, expected)
    # Requests that were under way wait for an attempt, at the same time; none is sent to the server later.
    assert 0 < retries(found) <= InFlight().prefetch


@pytest.mark.long
def test_a_stopped_server_is_only_probed_until_it_goes_on(
    folder: Path, expected: list[khop.Batch], start: Starts
) -> None:
    running = [start(folder), start(folder)]
    graph = khop.connect([each.address for each in running], attempt=4.0, deadline=60.0)
    loader = loader_of(graph)
    first = list(loader.epoch(0))
    running[0].send(signal.SIGSTOP)
    stopped = list(loader.epoch(0))
    began = time.monotonic()
    while_probed = list(loader.epoch(0))
    took = time.monotonic() - began
    running[0].send(signal.SIGCONT)
    end = time.monotonic() + 30
    again = list(loader.epoch(0))
    while 0 not in {batch.traffic["server"] for batch in again}:
        assert time.monotonic() < end, "the server is not asked again"
        again = list(loader.epoch(0))
    for found in (first, stopped, while_probed, again):
        assert_same_epoch(found, expected)
    assert retries(first) == 0 < retries(stopped)
    # No request goes to the stopped server: none waits for an attempt.
    assert (retries(while_probed), {batch.traffic["server"] for batch in while_probed}) == (0, {1})
    assert max(batch.traffic["seconds"] for batch in while_probed) < max(1.0, took)


@pytest.mark.long
def test_a_stopped_server_does_not_hold_a_large_request(folder: Path, start: Starts) -> None:
    """A request of 8 MiB does not fit into the buffers of a connection: sending it waits for the server."""
    running = [start(folder), start(folder)]
    graph = khop.connect([each.address for each in running], attempt=1.0, deadline=8.0)
    rows = {"item": Rows(torch.arange(1 << 20) % 2000, ("category",))}
    (expected,) = khop.open_graph(folder).features.gather(rows)["item"].values()
    pool = connected([running[0].address], Access(), Limits(600, 600))
    pool.describe()
    running[0].send(signal.SIGSTOP)
    for _ in range(2):
        (found,) = graph.features.gather(rows)["item"].values()
        assert torch.equal(found, expected)
    assert graph.features.view.exchange.counts["retries"] > 0
    stop, ended = threading.Event(), list[type[Exception]]()

    def fails(ask: Callable[[], object]) -> None:
        with pytest.raises((PeerLost, Cancelled)) as raised:
            ask()
        ended.append(raised.type)

    request = CallContext("rows", stop=stop)
    unwanted = threading.Thread(
        target=fails, args=(lambda: pool.ask(request, bytes(8 << 20), list),), daemon=True
    )
    unwanted.start()
    running[1].send(signal.SIGSTOP)
    lost = threading.Thread(target=fails, args=(lambda: graph.features.gather(rows),), daemon=True)
    lost.start()
    stop.set()
    for thread in (unwanted, lost):
        thread.join(WAIT_S)
    assert sorted(each.__name__ for each in ended) == ["Cancelled", "PeerLost"]


@pytest.mark.long
def test_all_servers_gone_is_an_error_with_their_addresses_soon_after_the_deadline(
    folder: Path, start: Starts
) -> None:
    running = [start(folder), start(folder)]
    batches = remote(running, attempt=2.0, deadline=6.0).epoch(0)
    step = next(batches).step
    running[0].kill()
    running[1].send(signal.SIGSTOP)
    began, lost = time.monotonic(), list[PeerLost]()
    for batch in until_lost(batches, lost):
        step, began = batch.step, time.monotonic()
    # The promise is exact under the clock of test_pool.py; these processes share two cores with other tests.
    assert time.monotonic() - began <= 6.0 + 2.0 + 20.0
    for words in (running[0].address, running[1].address, "--resume", f"epoch 0, step {step + 1}"):
        assert words in str(lost[0])


@pytest.mark.long
def test_servers_are_replaced_one_after_another_without_a_lost_batch(
    folder: Path, expected: list[khop.Batch], start: Starts
) -> None:
    running = [start(folder), start(folder)]
    found = []
    for batch in remote(running).epoch(0):
        found.append(batch)
        if batch.step in (8, 20):
            number = batch.step == 20
            running[number].send(signal.SIGTERM)
            assert running[number].process.wait(60) == 0
            running[number] = start(folder, listen=running[number].address)
    assert_same_epoch(found, expected)


@pytest.mark.long
def test_another_graph_behind_an_address_is_refused(folder: Path, start: Starts, tmp_path: Path) -> None:
    other = write_learnable_graph(tmp_path / "shop", nodes=700)
    running = [start(folder), start(other)]
    with pytest.raises(WrongGraph, match="the others have"):
        list(remote(running).epoch(0))


TRAINER = """
import sys, time, khop
graph = khop.connect(sys.argv[1:])
sampler = khop.NeighborSampler(graph, fanouts=[5, 3])
for batch in khop.Loader(sampler, graph.split("train"), 32, columns=["x"], prefetch=16).epoch(0):
    print(batch.step, flush=True)
    time.sleep(600)
"""


@pytest.mark.long
def test_a_killed_trainer_leaves_nothing_on_the_server_and_others_get_their_batches(
    folder: Path, expected: list[khop.Batch], start: Starts
) -> None:
    server = start(folder, "--at-once", "1")
    trainer = subprocess.Popen(
        [sys.executable, "-c", TRAINER, server.address], stdout=subprocess.PIPE, env=ENVIRONMENT
    )
    found = []
    with trainer:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == b"0\n"
        for batch in remote([server]).epoch(0):
            found.append(batch)
            if batch.step == len(expected) // 2:
                trainer.kill()
    assert retries(found) == 0
    assert_same_epoch(found, expected)
    end = time.monotonic() + 30
    while any(server.status()[stage] for stage in ("waiting", "making", "sending")):
        assert time.monotonic() < end, "requests of the killed trainer stay"


@pytest.mark.long
def test_several_trainers_get_the_same_batches_from_the_same_servers(
    folder: Path, expected: list[khop.Batch], start: Starts
) -> None:
    running = [start(folder), start(folder)]
    found: list[list[khop.Batch]] = [[] for _ in range(3)]
    threads = [threading.Thread(target=lambda f=f: f.extend(remote(running).epoch(0))) for f in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for batches in found:
        assert_same_epoch(batches, expected)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_consecutive_ports_are_served_by_processes_that_end_with_their_parent(
    folder: Path, number: signal.Signals
) -> None:
    port = free_port()
    servers = f"127.0.0.1:{port}-{port + 1}"
    words = ["serve", str(folder), "--listen", f"127.0.0.1:{port}", "--procs", "2"]
    with subprocess.Popen(
        [sys.executable, "-m", "khop", *words], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as parent:
        assert parent.stdout is not None
        served = {parent.stdout.readline().split()[-1] for _ in range(2)}
        assert served == {f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}"}
        try:
            graph = khop.connect([servers])
        finally:
            parent.send_signal(number)
        assert graph.num_nodes("item") == 2000
        assert parent.wait(WAIT_S) == (0 if number == signal.SIGTERM else -number)
        parent.stdout.read()  # until both servers have ended, too
    with pytest.raises(PeerLost):
        khop.connect([servers], deadline=0.5, attempt=0.5)


@pytest.mark.long
def test_a_server_without_requests_ends(folder: Path, start: Starts) -> None:
    server = start(folder, "--exit-idle", "0.5")
    assert server.process.wait(60) == 0


MEASURED = """
import sys, khop
graph = khop.connect(sys.argv[1:])
loader = khop.Loader(khop.NeighborSampler(graph, [2]), graph.split("train"), 64, shuffle=True, seed=1)
next(loader.epoch(0))
status = open("/proc/self/status").read().split()  # getrusage would count the process of the tests, too
print(len(loader), int(status[status.index("VmHWM:") + 1]) >> 10)
"""


@pytest.mark.long
def test_the_memory_of_a_client_does_not_grow_with_the_split(start: Starts, tmp_path: Path) -> None:
    """The ids of the longer split take 64 MB. They stay on the server."""
    peaks = []
    for count in (64_000, 8_000_000):
        nodes, ends = torch.arange(count), torch.arange(1000)
        table = NodeTable(count, splits={"train": nodes})
        write_graph(tmp_path / str(count), {"item": table}, {("item", "to", "item"): EdgeTable(ends, ends)})
        words = [sys.executable, "-c", MEASURED, start(tmp_path / str(count)).address]
        done = subprocess.run(words, capture_output=True, text=True, check=True, env=ENVIRONMENT)
        steps, peak_mib = map(int, done.stdout.split())
        assert steps == count // 64
        peaks.append(peak_mib)
    assert peaks[1] - peaks[0] < 20, peaks


@pytest.mark.long
def test_a_name_of_several_machines_is_resolved_again_when_one_is_lost(
    folder: Path, expected: list[khop.Batch], start: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers at 127.0.0.1 to 3 are behind one name, of which the network first knows two."""
    port, machines = free_port(), ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    running = [start(folder, listen=f"{machine}:{port}") for machine in machines]
    known = machines[:2]
    resolve(monkeypatch, "graphs.test", known)
    loader = loader_of(khop.connect([f"graphs.test:{port}"], attempt=5, deadline=60))
    found = []
    for batch in loader.epoch(0):
        found.append(batch)
        if batch.step == 10:
            known[:] = machines[1:]
            running[0].kill()
    assert_same_epoch(found, expected)
    assert int(str(running[1].status()["answers"])) > 3
    end = time.monotonic() + 60
    while int(str(running[2].status()["answers"])) == 0:
        assert time.monotonic() < end, "the new machine of the name is not asked"
        assert_same_epoch(list(loader.epoch(0)), expected)
