"""Rendezvous of the ranks of a run through a key-value store, up to the process group.

The store may have entries of earlier attempts. It listens on one address of one machine.
"""

from __future__ import annotations

import errno
import json
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import timedelta

import torch
from torch import distributed

from khop.distributed.processes.group import Group, enter, is_broken, leave
from khop.distributed.processes.launchers import Interface, RankInfo
from khop.distributed.processes.watch import (
    ANSWER_S,
    HealthBoard,
    PrefixStore,
    Store,
    TCPStore,
    Watch,
    within,
)
from khop.errors import PeerLost

POLL_S = 0.02


def hosted_store(address: str, port: int = 0) -> TCPStore:
    """Return a new store that listens only on this address, by default on a free port.

    OSError if the port is taken, or if the address cannot be used.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((address, port))
    except OSError as error:
        listening.close()
        if error.errno != errno.EADDRINUSE:
            raise OSError(f"cannot listen on {address}, port {port}: {error.strerror}") from error
        raise OSError(
            f"port {port} of this machine is in use, perhaps by another run: set MASTER_PORT to a free one "
            "on every rank"
        ) from None
    listening.listen()
    own_port = listening.getsockname()[1]
    # By default torch listens on all addresses. Its older server accepts a socket in every version.
    return TCPStore(
        address,
        own_port,
        None,
        True,
        wait_for_workers=False,
        master_listen_fd=listening.detach(),
        use_libuv=False,
    )


def reached_store(rank: int, host: str, port: int, deadline_s: float) -> TCPStore:
    """Connect this rank to a store; PeerLost if none answers within the deadline."""
    try:
        timeout = timedelta(seconds=deadline_s)
        return TCPStore(host, port, None, False, timeout=timeout, wait_for_workers=False)
    except distributed.DistError as error:
        raise PeerLost(
            f"rank {rank} could not connect to {host}:{port} within {deadline_s:g} s: rank 0 has not "
            "started, or this machine cannot reach it. MASTER_ADDR and MASTER_PORT must name rank 0's "
            "machine"
        ) from error


def wait_for(store: Store, keys: Mapping[int, str], deadline_s: float) -> list[int]:
    """Wait until the store has the keys of all ranks; return the ranks that miss the deadline."""
    # Not Store.wait: after a timeout it prints a stack of C++ frames to the terminal.
    end = time.monotonic() + deadline_s
    missing = list(keys)
    while missing:
        missing = [rank for rank in missing if not store.check([keys[rank]])]
        if time.monotonic() > end:
            break
        if missing:
            time.sleep(POLL_S)
    return missing


_ROUNDS, _TOKENS, _TAKEN = "khop/rounds", "khop/tokens", "taken"


@dataclass(frozen=True)
class Rendezvous:
    """The entry of a rank that has arrived."""

    host: str
    address: str  # on which the rank listens
    attempt: int  # restarts by its launcher; launchers of two machines may count differently
    token: int = 0  # unique among the processes of this store
    card: str = ""  # the GPU of the rank; empty if it has none, or a part of one (MIG)


@dataclass(frozen=True)
class Round:
    """All ranks of one attempt, once each has seen the others."""

    number: int  # number of the attempt in this store, from 1
    ranks: Mapping[int, Rendezvous]

    @property
    def attempt(self) -> int:
        """Restarts of the group: the largest number known to the store or any launcher."""
        return max([self.number - 1, *(arrived.attempt for arrived in self.ranks.values())])


def part_of(store: Store, number: int) -> Store:
    """Return the keys of the store that belong to one round."""
    return PrefixStore(f"khop/round/{number}", store)


def arrive(store: Store, rank: int, world_size: int, own: Rendezvous, deadline_s: float) -> Round:
    """Wait for every rank; PeerLost names the ranks that did not arrive within the deadline.

    Rank 0 opens a round and admits the processes that arrive in it. The others join the newest round. A round
    of an earlier attempt does not delay any rank, because it has admitted other processes.
    """
    own = replace(own, token=store.add(_TOKENS, 1))
    keys = {other: f"arrived/{other}" for other in range(world_size)}
    if rank == 0:
        return _opened(store, keys, own, deadline_s)
    return _joined(store, keys, rank, own, deadline_s)


def _opened(store: Store, keys: Mapping[int, str], own: Rendezvous, deadline_s: float) -> Round:
    number = store.add(_ROUNDS, 1)
    part = part_of(store, number)
    part.set(keys[0], json.dumps(asdict(own)))
    if wait_for(part, keys, deadline_s):
        raise _absent(part, keys, deadline_s)
    ranks = _read(part, keys)
    part.set(_TAKEN, json.dumps([arrived.token for arrived in ranks.values()]))
    return Round(number, ranks)


def _joined(store: Store, keys: Mapping[int, str], rank: int, own: Rendezvous, deadline_s: float) -> Round:
    number, part = 0, part_of(store, 0)
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        newest = store.add(_ROUNDS, 0)
        if newest > number:
            number, part = newest, part_of(store, newest)
            part.set(keys[rank], json.dumps(asdict(own)))
        if part.check([_TAKEN]) and own.token in json.loads(part.get(_TAKEN)):
            return Round(number, _read(part, keys))
        time.sleep(POLL_S)
    if not number or part.check([_TAKEN]):  # rank 0 has opened no round for this attempt
        part = part_of(store, number + 1)
        part.set(keys[rank], json.dumps(asdict(own)))
    raise _absent(part, keys, deadline_s)


def _read(part: Store, keys: Mapping[int, str]) -> dict[int, Rendezvous]:
    texts = part.multi_get(list(keys.values()))
    return {rank: Rendezvous(**json.loads(text)) for rank, text in zip(keys, texts, strict=True)}


def _absent(part: Store, keys: Mapping[int, str], deadline_s: float) -> PeerLost:
    missing = [rank for rank, key in keys.items() if not part.check([key])]
    here = _read(part, {rank: key for rank, key in keys.items() if rank not in missing})
    arrived = ", ".join(f"{rank} (host {of_rank.host})" for rank, of_rank in here.items())
    return PeerLost(
        f"{'rank' if len(missing) == 1 else 'ranks'} {', '.join(map(str, missing))} did not arrive within "
        f"{deadline_s:g} s; those of {len(keys)} that did: {arrived}"
    )


@dataclass(frozen=True)
class _Address:
    """Address of the rendezvous as one rank sees it."""

    rank_info: RankInfo
    interface: Interface
    deadline_s: float

    @property
    def where(self) -> str:
        """The address of the store, for errors."""
        return f"{self.rank_info.host}:{self.rank_info.port}"

    @property
    def is_host(self) -> bool:
        """True if this rank opens the store: rank 0, unless a launcher hosts it."""
        return self.rank_info.rank == 0 and not self.rank_info.launcher_hosts_store

    def first_store(self) -> Store:
        """Connect to the store for the first time: the host opens it."""
        return hosted_store(self.interface.address, self.rank_info.port) if self.is_host else self.store()

    def store(self) -> Store:
        """Open another connection to the store."""
        at = self.rank_info
        host = self.interface.address if self.is_host else at.host
        return reached_store(at.rank, host, at.port, self.deadline_s)


@contextmanager
def joined(
    rank_info: RankInfo, device: torch.device, deadline_s: float, interface: Interface
) -> Iterator[Group]:
    """Make this process a rank while the block runs: gloo on the CPU, and NCCL as well on GPUs.

    PeerLost names the ranks that did not arrive within the deadline. OSError if the port is taken. An error
    in the block is reported to the other ranks, which then end as well. A store on rank 0 listens on the
    interface's address. The caller has to make gloo and NCCL use the same interface, through their
    environment variables.
    """
    address = _Address(rank_info, interface, deadline_s)
    whole_store = address.first_store()
    met = _met(whole_store, address, device)
    # Separate connections: a blocked call delays all other calls of its connection.
    store, telling, asking = (
        part_of(each, met.number) for each in (whole_store, address.store(), address.store())
    )
    board = HealthBoard(telling, asking, rank_info.world_size, address.where)
    watch = Watch(board, rank_info.rank, met.ranks[rank_info.rank].host, deadline_s)
    watch.start()
    try:
        _make_torch_group(store, address, device)
        group = Group(
            rank_info.rank,
            rank_info.world_size,
            rank_info.local_rank,
            rank_info.local_world_size,
            deadline_s,
            store,
            watch,
            met.attempt,
        )
        enter(group)
        try:
            with _told(group):
                yield group
                group.at("leaving")
                for settle in group.before_leaving:
                    settle()
        finally:
            leave(group)
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()
        watch.close()  # last: destroying the process group may hang on a lost rank


@contextmanager
def _told(group: Group) -> Iterator[None]:
    """Report an error to the other ranks; turn a broken exchange in the user's loop into PeerLost."""
    assert group.watch is not None
    try:
        with group.exchanging("starting"):
            yield
    except PeerLost:
        group.watch.give_up()
        if group.rank == 0 and not group.is_of_one_machine:
            group.watch.outlast()
        raise
    except BaseException as error:
        if not _is_orderly(error):
            group.watch.failed(f"{type(error).__name__}: {error}")
            if not group.is_of_one_machine:
                group.watch.outlast()
        raise


def _is_orderly(error: BaseException) -> bool:
    """Return True for a requested exit: Ctrl-C, SIGTERM, sys.exit(0)."""
    return isinstance(error, KeyboardInterrupt) or (isinstance(error, SystemExit) and not error.code)


def _make_torch_group(store: Store, address: _Address, device: torch.device) -> None:
    """Connect every rank to every other; PeerLost if a connection fails."""
    at, interface, deadline_s = address.rank_info, address.interface, address.deadline_s

    def connect() -> None:
        if device.type == "cuda":
            torch.cuda.set_device(device)  # the current device is set per thread
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
            store=PrefixStore("torch", store),
            rank=at.rank,
            world_size=at.world_size,
            timeout=timedelta(seconds=deadline_s),
        )

    problem = f"There was no answer within {deadline_s:g} s"
    try:
        if within(deadline_s, connect):  # gloo's limit is five times as long
            return
    except RuntimeError as error:
        if not is_broken(error):
            raise
        problem = str(error).splitlines()[0]
    raise PeerLost(
        f"rank {at.rank} (host {socket.gethostname()}, {interface.address} of {interface.name}) found "
        "the other ranks but could not connect to all of them: open all ports between the machines, and use "
        f"--interface if they have several networks. {problem}"
    )


def _met(store: Store, address: _Address, device: torch.device) -> Round:
    """Wait for all ranks.

    PeerLost if a rank does not arrive; ValueError if others cannot reach a rank, or two have the same GPU.
    """
    at, deadline_s = address.rank_info, address.deadline_s
    own = Rendezvous(socket.gethostname(), address.interface.address, at.attempt, card=_card(device))
    found: list[Round] = []
    try:
        within(
            deadline_s + ANSWER_S,
            lambda: found.append(arrive(store, at.rank, at.world_size, own, deadline_s)),
        )
    except RuntimeError as error:
        if not is_broken(error):
            raise
    if not found:
        raise PeerLost(f"rank {at.rank} lost the store at {address.where}")
    ranks = found[0].ranks
    check_cards(ranks)
    hidden = [rank for rank, arrived in ranks.items() if Interface("", arrived.address).is_loopback]
    if hidden and len({arrived.host for arrived in ranks.values()}) > 1:
        raise ValueError(
            f"rank {hidden[0]} (host {ranks[hidden[0]].host}) listens on {ranks[hidden[0]].address}, which "
            "other machines cannot reach: its host name or MASTER_ADDR is a loopback address. Name the "
            "network of the machines with --interface, such as eth1 or 10.0.0.0/8"
        )
    return found[0]


def check_cards(ranks: Mapping[int, Rendezvous]) -> None:
    """Raise ValueError if two ranks of a host use the same GPU, with which NCCL fails or waits forever."""
    first: dict[str, int] = {}
    for rank, arrived in ranks.items():
        other = first.setdefault(arrived.card, rank)
        if arrived.card and other != rank:
            raise ValueError(
                f"ranks {other} and {rank} use the same GPU of host {arrived.host} ({arrived.card}): start "
                "one process per GPU, or give each process a different GPU by CUDA_VISIBLE_DEVICES, as srun "
                "--gpus-per-task=1 does"
            )


def _card(device: torch.device) -> str:
    """Return the identity of a rank's GPU for `Rendezvous`."""
    if device.type != "cuda":
        return ""
    properties = torch.cuda.get_device_properties(device)
    return "" if "MIG" in properties.name else str(getattr(properties, "uuid", ""))
