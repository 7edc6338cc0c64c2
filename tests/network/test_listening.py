"""What the ranks of a run listen on: one address of each host, and no public one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from network.hosts import Host
from network.runs import await_ranks_end, ended, started
from network.test_faults import SECONDS
from support.commands import ENVIRONMENT
from support.held_ranks import Hold

pytestmark = [pytest.mark.long, pytest.mark.timeout(600), pytest.mark.usefixtures("run_toml")]

PORT = 29600
STARTING_S = 15  # of processes that import torch, on a machine that is not idle
ENDLESS = ["train", "run.toml", "--epochs", "1000"]


@pytest.fixture
def with_public(hosts: tuple[Host, Host]) -> tuple[Host, Host]:
    """Two hosts that the Internet reaches too, each in a network of its own."""
    hosts[0].add_interface("wan0", "141.30.1.1/24")
    hosts[1].add_interface("wan0", "141.30.2.1/24")
    return hosts


def by_hand(
    hosts: tuple[Host, Host], *arguments: str, hold: Hold | None = None
) -> list[subprocess.Popen[str]]:
    """A rank on each, as SLURM or Kubernetes start them: rank 0 hosts the store."""
    meeting = {"WORLD_SIZE": "2", "MASTER_ADDR": "node-a", "MASTER_PORT": str(PORT)}
    common = ENVIRONMENT | meeting | (hold.environment if hold else {})
    command = [sys.executable, "-m", "support.held_ranks" if hold else "khop", *ENDLESS, *arguments]
    return [host.start(*command, environment=common | {"RANK": str(n)}) for n, host in enumerate(hosts)]


def listening(host: Host) -> set[str]:
    """What all ranks on a host listen on."""
    found = host.listening()
    return set().union(*(found.get(pid, set()) for pid in host.processes(but="torch.distributed.run")))


def held(running: list[subprocess.Popen[str]], hold: Hold, *hosts: Host) -> list[set[str]]:
    """What the ranks on each host listen on while one of them is held; then they end."""
    try:
        hold.wait(*running)
        return [listening(host) for host in hosts]
    finally:
        for process in running:
            process.kill()
            process.communicate()


def test_ranks_that_were_started_by_hand_listen_on_the_network_that_leads_to_rank_0(
    with_public: tuple[Host, Host], hold: Hold
) -> None:
    running = by_hand(with_public, hold=hold)
    assert held(running, hold, *with_public) == [{"10.77.0.1"}, {"10.77.0.2"}]


def test_ranks_of_torchrun_do_so_too_and_on_the_network_that_is_named(
    with_public: tuple[Host, Host], hold: Hold
) -> None:
    """Told beside a network that leads elsewhere: what torchrun itself listens on is not khop's to say."""
    running = started(with_public, "run.toml", "--interface", "10.0.0.0/8", hold=hold)
    assert held(running, hold, *with_public) == [{"10.77.0.1"}, {"10.77.0.2"}]


def test_ranks_of_one_machine_are_reached_from_it_alone(with_public: tuple[Host, Host], hold: Hold) -> None:
    command = [sys.executable, "-m", "support.held_ranks", *ENDLESS, "--procs", "2"]
    alone = with_public[0].start(*command, environment=ENVIRONMENT | hold.environment)
    assert held([alone], hold, with_public[0]) == [{"127.0.0.1"}]


def test_a_public_network_is_refused(with_public: tuple[Host, Host]) -> None:
    for outcome in ended(by_hand(with_public, "--interface", "wan0")):
        assert outcome.code == 2
        assert "would listen on 141.30." in outcome.errors
        assert "a public address that anyone can connect to: name a private network" in outcome.errors


def test_ranks_that_a_firewall_keeps_apart_say_so(hosts: tuple[Host, Host]) -> None:
    """Soon after the deadline, though gloo itself would wait for five times as long."""
    for host in hosts:
        host.refuse(f"ct state new tcp dport != {PORT}")
    running = by_hand(hosts)
    await_ranks_end(hosts, STARTING_S + 20 + SECONDS)
    outcomes = ended(running)
    assert all(outcome.code for outcome in outcomes)
    said = "found the other ranks but could not connect to all of them: open all ports between the machines"
    assert any(said in outcome.errors for outcome in outcomes), outcomes
