"""Rendezvous of a process: it finds the store, waits for all ranks, and creates the process group."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import distributed

from khop.errors import PeerLost
from khop.runtime.group import Group, enter, is_broken, leave
from khop.runtime.health_board import ANSWER_S, HealthBoard, within
from khop.runtime.interfaces import Interface
from khop.runtime.launchers import RankInfo
from khop.runtime.listening_stores import hosted_store, reached_store
from khop.runtime.rendezvous_point import Rendezvous, Round, arrive, part_of
from khop.runtime.torch_types import PrefixStore, Store
from khop.runtime.watch import Watch


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
        """Connect to the store once more."""
        at = self.rank_info
        host = self.interface.address if self.is_host else at.host
        return reached_store(at.rank, host, at.port, self.deadline_s)


@contextmanager
def joined(
    rank_info: RankInfo, device: torch.device, deadline_s: float, interface: Interface
) -> Iterator[Group]:
    """Make this process a rank while the block runs: gloo on the CPU, with NCCL beside it on GPUs.

    PeerLost names the ranks that did not arrive within the deadline. OSError if the port is taken. An error
    in the block is reported to the other ranks, which then end as well. A store that rank 0 hosts listens on
    the interface's address. The caller has to make gloo and NCCL do the same, through their environment
    variables.
    """
    address = _Address(rank_info, interface, deadline_s)
    whole_store = address.first_store()
    met = _met(whole_store, address)
    # Separate connections: a call that blocks on one delays every other call on it.
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
    """Report an error to the other ranks; turn a broken exchange in the user's own loop into PeerLost."""
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
    """Return True for a requested end: Ctrl-C, SIGTERM, sys.exit(0)."""
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
        if within(deadline_s, connect):  # gloo's own limit is five times as long
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


def _met(store: Store, address: _Address) -> Round:
    """Wait for all ranks.

    PeerLost if one does not arrive, ValueError if the others cannot reach one.
    """
    at, deadline_s = address.rank_info, address.deadline_s
    own = Rendezvous(socket.gethostname(), address.interface.address, at.attempt)
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
    hidden = [rank for rank, arrived in ranks.items() if Interface("", arrived.address).is_loopback]
    if hidden and len({arrived.host for arrived in ranks.values()}) > 1:
        raise ValueError(
            f"rank {hidden[0]} (host {ranks[hidden[0]].host}) listens on {ranks[hidden[0]].address}, which "
            "other machines cannot reach: its host name or MASTER_ADDR is a loopback address. Name the "
            "network of the machines with --interface, as eth1 or 10.0.0.0/8"
        )
    return found[0]
