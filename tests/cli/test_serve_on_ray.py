"""Servers that Ray places and restarts, in a small cluster of this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("pyarrow.flight", reason="pip install pyarrow")
pytest.importorskip("ray", reason="`make test-all` installs ray")

from ray.cluster_utils import Cluster

import khop
from support.commands import free_port
from support.same_samples import assert_same, assert_same_epoch
from support.server_processes import ENVIRONMENT, Server
from support.small_folders import write_learnable_graph

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_learnable_graph(tmp_path_factory.mktemp("graph") / "shop", nodes=2000)


@contextmanager
def on_ray(
    folder: Path, count: int, *options: str, listen: str = "127.0.0.1", cluster: str = ""
) -> Iterator[tuple[subprocess.Popen[str], list[Server]]]:
    """Yield the command in a process group of its own, as in a terminal, and its servers."""
    words = [sys.executable, "-m", "khop", "serve", folder.name, "--on-ray", str(count), *options]
    environment = {**ENVIRONMENT, "RAY_ADDRESS": cluster} if cluster else ENVIRONMENT
    with subprocess.Popen(
        [*words, "--listen", f"{listen}:{free_port()}"],
        stdout=subprocess.PIPE, text=True, env=environment, cwd=folder.parent, start_new_session=True,
    ) as command:  # fmt: skip
        assert command.stdout is not None
        try:
            lines = sorted(command.stdout.readline() for _ in range(count))
            yield command, [Server(command, line.split()[-1]) for line in lines]
        finally:
            command.terminate()


def loader_of(graph: khop.Graph) -> khop.Loader:
    sampler = khop.NeighborSampler(graph, fanouts=[5, 3])
    return khop.Loader(sampler, graph.split("train"), 32, shuffle=True, columns=["x"])


def pid_of(server: Server) -> int:
    return int(str(server.status()["pid"]))


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_killed_server_comes_back_on_its_port_and_no_batch_is_lost(folder: Path) -> None:
    expected = list(loader_of(khop.open_graph(folder)).epoch(0))
    with on_ray(folder, 2) as (command, running):
        addresses = [each.address for each in running]
        pids = [pid_of(each) for each in running]
        found = []
        for batch in loader_of(khop.connect(addresses)).epoch(0):
            found.append(batch)
            if batch.step == 5:
                os.kill(pids[0], signal.SIGKILL)
        assert [batch.step for batch in found] == [batch.step for batch in expected]
        for one, other in zip(found, expected, strict=True):
            assert_same(one.sample, other.sample)
            assert_same(one.columns, other.columns, "columns")
        khop.connect([addresses[0]], deadline=60)  # waits until it answers
        again = pid_of(running[0])
        assert again != pids[0]
        os.killpg(command.pid, signal.SIGINT)  # Ctrl-C reaches all processes of a terminal
        assert command.wait(60) == 0
    assert not is_alive(again)
    assert not is_alive(pids[1])


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Yield a cluster of two machines with their own addresses, which are processes here."""
    monkeypatch.setenv("RAY_ENABLE_MULTI_NODE_CLUSTER_ON_SAME_MACHINE", "1")
    cluster = Cluster(True, head_node_args={"num_cpus": 2, "node_ip_address": "127.0.0.2"})
    try:
        cluster.add_node(num_cpus=1, node_ip_address="127.0.0.3")
        yield cluster
    finally:
        cluster.shutdown()


def test_servers_are_on_all_machines_and_one_that_is_lost_is_replaced_on_another(
    folder: Path, machines: Cluster
) -> None:
    expected = list(loader_of(khop.open_graph(folder)).epoch(0))
    options = ("--at-once", "1", "--insecure")
    with on_ray(folder, 2, *options, listen="0.0.0.0", cluster=machines.address) as (command, running):
        hosts = [each.address.rpartition(":")[0] for each in running]
        assert sorted(hosts) == ["127.0.0.2", "127.0.0.3"]
        first, last = sorted(each.port for each in running)
        addresses = [f"{host}:{first}-{last}" for host in sorted(hosts)]
        found = []
        for batch in loader_of(khop.connect(addresses)).epoch(0):
            found.append(batch)
            if batch.step == 5:
                (lost,) = [node for node in machines.list_all_nodes() if node.node_ip_address == "127.0.0.3"]
                machines.remove_node(lost, allow_graceful=False)
        assert_same_epoch(found, expected)
        moved = running[hosts.index("127.0.0.3")].port
        khop.connect([f"127.0.0.2:{moved}"], deadline=120)  # waits until it answers there
        os.killpg(command.pid, signal.SIGINT)
        assert command.wait(60) == 0


def test_servers_that_are_idle_end_the_command(folder: Path) -> None:
    with on_ray(folder, 2, "--exit-idle", "0.5", "--at-once", "1") as (command, _):
        assert command.wait(60) == 0


def test_servers_end_with_a_command_that_is_killed(folder: Path) -> None:
    with on_ray(folder, 1) as (command, running):
        pid = pid_of(running[0])
        command.kill()
    last = time.monotonic() + 60
    while is_alive(pid) and time.monotonic() < last:
        time.sleep(0.2)
    assert not is_alive(pid)


def test_a_server_that_cannot_begin_ends_the_command_with_its_reason(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "khop", "serve", str(tmp_path / "nothing"), "--on-ray", "1"]
    done = subprocess.run(words, capture_output=True, text=True, env=ENVIRONMENT, timeout=120)
    assert done.returncode in (1, 2)
    assert "server 0: " in done.stderr
    assert "nothing" in done.stderr
    assert "Traceback" not in done.stderr
