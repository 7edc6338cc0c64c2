"""Where the ranks of a run may listen, and what they say when a firewall keeps them apart."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gate import WAIT_S
from network.hosts import Host
from network.runs import await_ranks_end, ended
from processes.commands import ENVIRONMENT

pytestmark = [pytest.mark.long, pytest.mark.timeout(600), pytest.mark.usefixtures("run_toml")]

PORT = 29600
ENDLESS = ["train", "run.toml", "--epochs", "1000"]


@pytest.fixture
def with_public(hosts: tuple[Host, Host]) -> tuple[Host, Host]:
    """Two hosts that the Internet reaches too, each in a network of its own."""
    hosts[0].add_interface("wan0", "141.30.1.1/24")
    hosts[1].add_interface("wan0", "141.30.2.1/24")
    return hosts


def by_hand(hosts: tuple[Host, Host], *arguments: str) -> list[subprocess.Popen[str]]:
    """A rank on each, as SLURM or Kubernetes start them: rank 0 hosts the store."""
    meeting = {"WORLD_SIZE": "2", "MASTER_ADDR": "node-a", "MASTER_PORT": str(PORT)}
    common = ENVIRONMENT | meeting
    command = [sys.executable, "-m", "khop", *ENDLESS, *arguments]
    return [host.start(*command, environment=common | {"RANK": str(n)}) for n, host in enumerate(hosts)]


def test_a_public_network_is_refused(with_public: tuple[Host, Host]) -> None:
    for outcome in ended(by_hand(with_public, "--interface", "wan0")):
        assert outcome.code == 2
        assert "would listen on 141.30." in outcome.errors
        assert "a public address, where anyone may take part: name a private network" in outcome.errors


def test_ranks_that_a_firewall_keeps_apart_say_so(hosts: tuple[Host, Host]) -> None:
    for host in hosts:
        host.refuse(f"ct state new tcp dport != {PORT}")
    running = by_hand(hosts)
    await_ranks_end(hosts, WAIT_S)
    outcomes = ended(running)
    assert all(outcome.code for outcome in outcomes)
    said = (
        "met the others but could not connect to all of them: machines of a run need all ports between them"
    )
    assert any(said in outcome.errors for outcome in outcomes), outcomes
