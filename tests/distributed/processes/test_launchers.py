"""The same code finds its rank under every launcher, from the environment alone.

On which address of a machine a run listens, and which are refused.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from khop.distributed.processes import launchers as module
from khop.distributed.processes.launchers import (
    LOOPBACK,
    Interface,
    Listening,
    RankInfo,
    chosen,
    first_host,
    gpu_of_rank,
    interfaces,
    listening_interface,
    rank_info_of,
)

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "host0",
    "MASTER_PORT": "29400",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_RUN_ID": "abc",
}
SRUN = {
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_STEP_NODELIST": "gpu[03-04]",
    "SLURM_STEP_TASKS_PER_NODE": "4,3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_JOB_ID": "1234567",
}
KUBERNETES = {"JOB_COMPLETION_INDEX": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "job-0.svc"}
RAY = {name: TORCHRUN[name] for name in list(TORCHRUN)[:6]}


def test_a_process_started_by_hand_has_no_placement() -> None:
    assert rank_info_of({"HOME": "/root"}) is None
    assert rank_info_of({**SRUN, "SLURM_STEP_NUM_TASKS": "1"}) is None


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (TORCHRUN, RankInfo(5, 8, 1, 4, "host0", 29400, True, 2, "abc")),
        (RAY, RankInfo(5, 8, 1, 4, "host0", 29400)),
        (SRUN, RankInfo(5, 7, 1, 3, "gpu03", 20000 + 1234567 % 20000)),
        ({**SRUN, "MASTER_ADDR": "a", "MASTER_PORT": "7"}, RankInfo(5, 7, 1, 3, "a", 7)),
        (KUBERNETES, RankInfo(1, 2, 0, 1, "job-0.svc", 29500)),
        ({"RANK": "0", "WORLD_SIZE": "1"}, RankInfo(0, 1, 0, 1, "127.0.0.1", 29500)),
    ],
    ids=["torchrun", "ray", "srun", "srun-named", "kubernetes", "alone"],
)
def test_every_launcher_is_understood(environment: dict[str, str], expected: RankInfo) -> None:
    assert rank_info_of(environment) == expected


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("node7", "node7"),
        ("a1,a2", "a1"),
        ("gpu[03-05,9],login", "gpu03"),
        ("n[1-2]-ib", "n1-ib"),
        ("r[1-2]n[03,7]x,z", "r1n03x"),
    ],
)
def test_the_first_host_of_a_node_list_is_rank_0s(nodes: str, host: str) -> None:
    assert first_host(nodes) == host


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({**TORCHRUN, "RANK": "x"}, "RANK is 'x': must be a whole number"),
        ({**TORCHRUN, "RANK": "8"}, "rank 8 of 8: must be 0 to 7"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR is not set: set it to the host of rank 0"),
        ({**SRUN, "SLURM_STEP_NODELIST": ""}, "names no host; set MASTER_ADDR"),
        ({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "4y"}, r"is '4y': must have the form 4\(x2\),3"),
    ],
)
def test_what_is_wrong_with_an_environment_is_named(environment: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        rank_info_of(environment)


SEVERAL = [
    LOOPBACK,
    Interface("eth0", "141.30.1.2"),
    Interface("eth1", "10.1.0.7"),
    Interface("eth1", "10.2.0.7"),
    Interface("eth1", "fd00::7"),
    Interface("ib0", "fd00::8"),
]


def placement(host: str, local_world_size: int = 1) -> RankInfo:
    """Rank 0 of two."""
    return RankInfo(0, 2, 0, local_world_size, host, 29500)


@contextmanager
def machine(monkeypatch: pytest.MonkeyPatch, towards: dict[str, str]) -> Iterator[None]:
    """This machine has several networks, and its routes lead from these addresses."""
    with monkeypatch.context() as patch:
        patch.setattr(module, "interfaces", lambda: SEVERAL)
        patch.setattr(module, "_own_address_towards", lambda host: towards.get(host, towards["*"]))
        yield


@pytest.mark.parametrize(
    ("said", "address"),
    [("eth1", "10.1.0.7"), ("10.1.0.7", "10.1.0.7"), ("10.0.0.0/8", "10.1.0.7"), ("fd00::/8", "fd00::8")],
)
def test_an_interface_is_known_by_its_name_its_address_or_its_network(said: str, address: str) -> None:
    assert chosen(said, SEVERAL).address == address


@pytest.mark.parametrize("said", ["eth9", "10.2.0.7", "172.16.0.0/12", "10.1.0.7/33"])
def test_an_interface_that_is_not_there_is_refused_with_those_that_are(said: str) -> None:
    with pytest.raises(
        ValueError, match=rf"--interface {said}: .* there are lo 127.0.0.1, eth0 141.30.1.2, "
    ):
        chosen(said, SEVERAL)


def test_this_machines_own_interfaces_are_those_that_the_system_lists() -> None:
    lines = subprocess.run(["ip", "-br", "address"], capture_output=True, text=True, check=True).stdout
    listed = {
        (line.split()[0].partition("@")[0], address.partition("/")[0])
        for line in lines.splitlines()
        for address in line.split()[2:]
        if not address.startswith("fe80")
    }
    assert {(each.name, each.address) for each in interfaces()} == listed
    assert interfaces()[0] == LOOPBACK


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_one_machine_is_among_itself(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with machine(monkeypatch, {"*": "141.30.1.2"}):
        assert listening_interface(Listening(), placement(host)) == LOOPBACK
        assert listening_interface(Listening(), placement("node-0", local_world_size=2)) == LOOPBACK


def test_of_several_machines_the_network_is_taken_that_leads_to_rank_0(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with machine(monkeypatch, {"node-0": "10.1.0.7", "*": "141.30.1.2"}):
        assert listening_interface(Listening(), placement("node-0")).name == "eth1"
    # As on Debian: a machine's own name leads to itself.
    with machine(monkeypatch, {"node-0": "127.0.1.1", "*": "10.1.0.7"}):
        assert listening_interface(Listening(), placement("node-0")).name == "eth1"
    with machine(monkeypatch, {"*": ""}):
        assert listening_interface(Listening(), placement("node-0")) == LOOPBACK


def test_a_public_address_is_refused_unless_it_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    with machine(monkeypatch, {"*": "141.30.1.2"}):
        for network in (Listening(), Listening("eth0")):
            with pytest.raises(
                ValueError, match=r"rank 0 would listen on 141.30.1.2 \(eth0\), a public address"
            ):
                listening_interface(network, placement("node-0"))
        assert listening_interface(Listening(allow_public=True), placement("node-0")).name == "eth0"
        assert listening_interface(Listening("10.0.0.0/8"), placement("node-0")).name == "eth1"


def test_a_way_to_a_host_begins_at_an_address_of_this_machine() -> None:
    assert module._own_address_towards("127.0.0.1") == "127.0.0.1"
    assert module._own_address_towards("no.such.host.invalid") == ""
    assert socket.getaddrinfo("localhost", 9)


@pytest.mark.parametrize(("local_rank", "visible", "expected"), [(0, 4, 0), (3, 4, 3), (3, 1, 0), (0, 1, 0)])
def test_a_rank_takes_the_gpu_of_its_number_or_the_only_one(
    local_rank: int, visible: int, expected: int
) -> None:
    assert gpu_of_rank(local_rank, visible) == expected


@pytest.mark.parametrize("visible", [0, 2])
def test_a_rank_without_a_gpu_is_refused(visible: int) -> None:
    with pytest.raises(ValueError, match=f"rank 2 of this machine has no GPU: torch finds {visible}; start"):
        gpu_of_rank(2, visible)
