"""Servers and a trainer on hosts of their own, with TLS and tokens, over a network that is bad or cut."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("pyarrow.flight", reason="pip install pyarrow")

from khop.servers.access import write_token
from network.hosts import Host, two_hosts
from support.certificates import Authority
from support.small_folders import write_learnable_graph

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

ENVIRONMENT = {**os.environ, "OMP_WAIT_POLICY": "passive"}
TRAINER = """
import hashlib, sys, khop
graph = sys.argv[1]
if len(sys.argv) > 2:
    graph = khop.connect(sys.argv[2:], token_file="token", ca="ca/ca.pem", attempt=3, deadline=60)
else:
    graph = khop.open_graph(graph)
sampler = khop.NeighborSampler(graph, fanouts=[5, 3])
loader = khop.Loader(sampler, graph.split("train"), 16, shuffle=True, columns=["x"])
digest = hashlib.sha256()
for batch in loader.epoch(0):
    for tensor in (*batch.sample.nodes.values(), *(c["x"] for c in batch.columns.values())):
        digest.update(tensor.numpy().tobytes())
    print(batch.step, flush=True)
print(digest.hexdigest())
"""


@dataclass
class Trainer:
    """A process that reads an epoch and prints each step, then the digest of all batches."""

    process: subprocess.Popen[str]

    def until(self, step: int) -> None:
        """Wait until a step has been read."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip() == str(step):
                return
        raise AssertionError(self.process.communicate()[1])

    def digest(self) -> str:
        """Wait for the end."""
        output, errors = self.process.communicate(timeout=300)
        assert self.process.returncode == 0, errors
        return output.split()[-1]


@pytest.fixture
def expected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A graph, a token and certificates in a folder that both hosts see; the digest of local batches."""
    monkeypatch.chdir(tmp_path)
    write_learnable_graph(tmp_path / "shop", nodes=900)
    write_token(tmp_path / "token", ["shop"])
    Authority.of(tmp_path / "ca").signed("server", "IP:10.77.0.1,IP:10.77.0.2")
    words = [sys.executable, "-c", TRAINER, "shop"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=ENVIRONMENT)
    return done.stdout.split()[-1]


@contextmanager
def serving(host: Host) -> Iterator[subprocess.Popen[str]]:
    """A server on a host, at port 7311 of its address."""
    security = ["--token-file", "token", "--tls-cert", "ca/server.pem", "--tls-key", "ca/server.key"]
    words = ["serve", "shop", "--listen", f"{host.address}:7311", *security]
    process = host.start(sys.executable, "-m", "khop", *words, environment=ENVIRONMENT)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("serving shop"), process.communicate()[1]
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def trainer(host: Host, *servers: Host) -> Trainer:
    addresses = [f"{each.address}:7311" for each in servers]
    return Trainer(host.start(sys.executable, "-c", TRAINER, "shop", *addresses, environment=ENVIRONMENT))


@pytest.mark.parametrize("how", ["well", "5 % lost", "10 Mbit/s", "200 ms"])
def test_a_network_that_is_only_bad_changes_no_batch(how: str, expected: str) -> None:
    with two_hosts(delay_s=0.2 if how == "200 ms" else 0.0) as (near, far), serving(far):
        for host in (near, far):
            if how == "5 % lost":
                host.lose(5)
            if how == "10 Mbit/s":
                host.limit(10)
        assert trainer(near, far).digest() == expected


def test_a_cut_link_costs_an_attempt_and_the_other_server_answers(expected: str) -> None:
    with two_hosts() as (near, far), serving(near), serving(far):
        running = trainer(near, near, far)
        running.until(3)
        far.set_link("down")
        assert running.digest() == expected


def test_a_link_that_comes_back_within_the_deadline_loses_nothing(expected: str) -> None:
    with two_hosts() as (near, far), serving(far):
        running = trainer(near, far)
        running.until(3)
        far.set_link("down")
        with pytest.raises(subprocess.TimeoutExpired):
            running.process.wait(8)
        far.set_link("up")
        assert running.digest() == expected


def test_a_server_listens_on_its_one_address(expected: str) -> None:
    with two_hosts() as (_, far), serving(far):
        # gRPC's sockets are of IPv6, and show an address of IPv4 in its mapped form.
        found = {each.strip("[]").removeprefix("::ffff:") for each in set().union(*far.listening().values())}
        assert found == {far.address}
