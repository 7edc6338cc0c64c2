"""Rank of a process, from the environment that a launcher sets, and the network address of its machine.

Launchers are torchrun, SLURM, Ray Train and Kubernetes. A run listens on one address, either chosen by the
user or the one that faces rank 0, never on all addresses. Gloo, NCCL and the store do not authenticate peers,
so any process that reaches them can take part.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import struct
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fcntl import ioctl
from pathlib import Path

PORT = 29500  # port of rank 0 unless another is set; torch's default


@dataclass(frozen=True)
class RankInfo:
    """One process of a run, and the address of the rendezvous."""

    rank: int
    world_size: int
    local_rank: int  # index among the ranks of this machine
    local_world_size: int
    host: str  # of the store for the rendezvous
    port: int
    launcher_hosts_store: bool = False  # otherwise rank 0 hosts it
    attempt: int = 0  # restarts counted by the launcher on this machine
    run_id: str = ""  # the launcher's name of the run, the same for all attempts

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank {self.rank} of {self.world_size}: must be 0 to {self.world_size - 1}")


def rank_info_of(environment: Mapping[str, str]) -> RankInfo | None:
    """Return the rank that a launcher assigned to this process, or None.

    torchrun, Ray Train and Kubeflow set RANK and WORLD_SIZE. An indexed Kubernetes job sets its index; its
    manifest sets WORLD_SIZE and MASTER_ADDR. srun sets the tasks and nodes of the step. None if no launcher
    started the process, or if it is the only task of a SLURM step. ValueError if a value is missing or is not
    a number.
    """
    if "WORLD_SIZE" in environment and ("RANK" in environment or "JOB_COMPLETION_INDEX" in environment):
        return _of_torch(environment)
    if _number(environment, "SLURM_STEP_NUM_TASKS", 1) > 1 and "SLURM_PROCID" in environment:
        return _of_slurm(environment)
    return None


def _of_torch(environment: Mapping[str, str]) -> RankInfo:
    world_size = _number(environment, "WORLD_SIZE")
    if "MASTER_ADDR" not in environment and world_size > 1:
        raise ValueError(
            f"WORLD_SIZE is {world_size} but MASTER_ADDR is not set: set it to the host of rank 0, or start "
            "with torchrun"
        )
    return RankInfo(
        rank=_number(environment, "RANK" if "RANK" in environment else "JOB_COMPLETION_INDEX"),
        world_size=world_size,
        local_rank=_number(environment, "LOCAL_RANK", 0),
        local_world_size=_number(environment, "LOCAL_WORLD_SIZE", 1),
        host=environment.get("MASTER_ADDR", "127.0.0.1"),
        port=_number(environment, "MASTER_PORT", PORT),
        launcher_hosts_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        attempt=_number(environment, "TORCHELASTIC_RESTART_COUNT", 0),
        run_id=environment.get("TORCHELASTIC_RUN_ID", ""),
    )


def _of_slurm(environment: Mapping[str, str]) -> RankInfo:
    nodes = environment.get("SLURM_STEP_NODELIST", "")
    tasks_per_node = environment.get("SLURM_STEP_TASKS_PER_NODE", "1")
    # Ranks cannot communicate yet but need one port; the job id gives jobs on one machine different ports.
    of_the_job = 20000 + _number(environment, "SLURM_JOB_ID", 0) % 20000
    return RankInfo(
        rank=_number(environment, "SLURM_PROCID"),
        world_size=_number(environment, "SLURM_STEP_NUM_TASKS"),
        local_rank=_number(environment, "SLURM_LOCALID", 0),
        local_world_size=_tasks_here(tasks_per_node, _number(environment, "SLURM_NODEID", 0)),
        host=environment.get("MASTER_ADDR", first_host(nodes)),
        port=_number(environment, "MASTER_PORT", of_the_job),
    )


def gpu_of_rank(local_rank: int, visible: int) -> int:
    """Return the index of a rank's GPU among the GPUs visible to its process.

    SLURM, MIG and Kubernetes may make only one GPU visible to each process. ValueError if the rank has none.
    """
    if visible == 1:
        return 0
    if local_rank >= visible:
        raise ValueError(
            f"rank {local_rank} of this machine has no GPU: torch finds {visible}; start as many processes "
            "as GPUs, or make a different GPU visible to each process, as srun --gpus-per-task=1 does"
        )
    return local_rank


def first_host(nodes: str) -> str:
    """Return the first host of a SLURM node list: "rack[1-2]gpu[03-05,9],login" gives rack1gpu03."""
    found = re.match(r"(?:[^\[,]|\[\w[^\]]*\])+", nodes)
    if found is None:
        raise ValueError(f"SLURM_STEP_NODELIST is {nodes!r}: names no host; set MASTER_ADDR to rank 0's host")
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", found[0])


def _tasks_here(tasks_per_node: str, node: int) -> int:
    """Return the number of tasks on a node by SLURM's "4(x2),3": nodes 0 and 1 have 4, node 2 has 3."""
    counts: list[int] = []
    for part in tasks_per_node.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if found is None:
            raise ValueError(f"SLURM_STEP_TASKS_PER_NODE is {tasks_per_node!r}: must have the form 4(x2),3")
        counts += [int(found[1])] * int(found[2] or 1)
    return counts[min(node, len(counts) - 1)]


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environment.get(name)
    if text is None:
        if default is None:
            raise ValueError(f"{name} is not set: start with torchrun, srun or khop train --procs")
        return default
    if not text.isdecimal():
        raise ValueError(f"{name} is {text!r}: must be a whole number, as the launcher sets it")
    return int(text)


_LIST_OF_INTERFACES = 0x8912  # SIOCGIFCONF
_ENTRY, _MOST_ENTRIES = 40, 1024  # struct ifreq: 16 bytes of name, then a socket address
_LINK_LOCAL = "20"  # scope in if_inet6: an address of this scope is valid only with its interface's name
_ELSEWHERE = "192.0.2.1"  # an address for documentation: no machine has it, so the default route leads there


@dataclass(frozen=True)
class Interface:
    """A network interface, with the address that other machines connect to."""

    name: str
    address: str

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can reach the address."""
        return ipaddress.ip_address(self.address).is_loopback

    @property
    def is_public(self) -> bool:
        """True if the address is public."""
        return ipaddress.ip_address(self.address).is_global


LOOPBACK = Interface("lo", "127.0.0.1")


@dataclass(frozen=True)
class Listening:
    """The user's choice of the interface on which ranks listen."""

    interface: str | None = None  # name, address or network; None: the interface that faces rank 0
    allow_public: bool = False


def listening_interface(listening: Listening, rank_info: RankInfo) -> Interface:
    """Return the interface that this rank listens on.

    ValueError if no interface matches, or if the address is public and `allow_public` is not set.
    """
    found = _found(listening.interface, rank_info, interfaces())
    if found.is_public and not listening.allow_public:
        raise ValueError(
            f"rank {rank_info.rank} would listen on {found.address} ({found.name}), a public address that "
            "anyone can connect to: name a private network with --interface, such as 10.0.0.0/8, or, behind "
            "a firewall, use --allow-public"
        )
    return found


def interfaces() -> list[Interface]:
    """Return the addresses of this machine, IPv4 first; gloo uses the first address of an interface."""
    return [*_of_ipv4(), *_of_ipv6()]


def chosen(interface: str, among: Sequence[Interface]) -> Interface:
    """Return the first interface with this name, this address, or an address in this network.

    Only the first address of each interface is compared. ValueError lists all interfaces if none matches.
    """
    first: dict[str, Interface] = {}  # first address of each name, the only one that gloo uses
    for each in among:
        first.setdefault(each.name, each)
    matching = [each for each in first.values() if interface == each.name or _lies_in(each, interface)]
    if not matching:
        have = ", ".join(f"{each.name} {each.address}" for each in among)
        raise ValueError(
            f"--interface {interface}: no interface of {socket.gethostname()} has this name or a first "
            f"address in it; there are {have}"
        )
    return matching[0]


def _found(interface: str | None, rank_info: RankInfo, among: Sequence[Interface]) -> Interface:
    if interface:
        return chosen(interface, among)
    is_of_one_machine = rank_info.local_world_size == rank_info.world_size
    if is_of_one_machine or rank_info.host == "localhost" or rank_info.host.startswith("127."):
        return LOOPBACK
    # A machine's name often resolves to 127.0.1.1 on itself: then use the interface of the default route.
    facing = [_own_address_towards(host) for host in (rank_info.host, _ELSEWHERE)]
    own = {each.address: each for each in among if not each.is_loopback}
    return next((own[address] for address in facing if address in own), LOOPBACK)


def _lies_in(interface: Interface, network: str) -> bool:
    try:
        return ipaddress.ip_address(interface.address) in ipaddress.ip_network(network, strict=False)
    except ValueError:  # a name
        return False


def _own_address_towards(host: str) -> str:
    """Return this machine's source address for packets to the host; "" if there is no route."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # connecting a datagram socket sends nothing
            own: str = probe.getsockname()[0]
            return own
    except OSError:
        return ""


def _of_ipv4() -> list[Interface]:
    buffer = array("B", bytes(_ENTRY * _MOST_ENTRIES))
    place = struct.pack("iL", len(buffer), buffer.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        used, _ = struct.unpack("iL", ioctl(any_socket, _LIST_OF_INTERFACES, place))
    entries = [buffer[start : start + _ENTRY].tobytes() for start in range(0, used, _ENTRY)]
    return [
        Interface(entry[:16].split(b"\0")[0].decode(), socket.inet_ntoa(entry[20:24])) for entry in entries
    ]


def _of_ipv6() -> list[Interface]:
    listed = Path("/proc/net/if_inet6")
    lines = [line.split() for line in listed.read_text().splitlines()] if listed.exists() else []
    return [
        Interface(name, str(ipaddress.IPv6Address(bytes.fromhex(digits))))
        for digits, _, _, scope, _, name in lines
        if scope != _LINK_LOCAL
    ]
