"""How a process becomes a rank: it finds the store, waits for the others, and makes the process group."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
from torch import distributed

from khop.distributed.group import Group, enter, is_broken, leave, this_group, wait_for
from khop.distributed.launchers import Placement
from khop.distributed.torch_types import PrefixStore, Store, TCPStore
from khop.distributed.watch import Watch
from khop.errors import PeerLost


@contextmanager
def joined(placement: Placement, device: torch.device, deadline_s: float) -> Iterator[Group]:
    """This process as a rank, for as long as the block runs: gloo on the CPU, with NCCL beside it on GPUs.

    PeerLost names the ranks that did not arrive within the deadline; OSError says that the port is taken. An
    error in the block is told to the others, who then end as well. A process group that somebody else made,
    as Ray Train does, is used as it is.
    """
    if distributed.is_initialized():
        yield this_group()
        return
    store = _store(placement, deadline_s)
    host = socket.gethostname()
    # Connections of its own: a call that waits on one holds up all others on it.
    own = [_store(placement, deadline_s, is_host=False) for _ in range(2)]
    watch = Watch(own[0], own[1], placement.rank, placement.world_size, host)
    _await_all(store, placement, host, deadline_s)
    watch.start()
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    try:
        distributed.init_process_group(
            backend,
            store=PrefixStore("torch", store),
            rank=placement.rank,
            world_size=placement.world_size,
            timeout=timedelta(seconds=deadline_s),
        )
        group = Group(
            placement.rank,
            placement.world_size,
            placement.local_rank,
            placement.local_world_size,
            deadline_s,
            store,
            watch,
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
        watch.close()
        if distributed.is_initialized():
            distributed.destroy_process_group()


@contextmanager
def _told(group: Group) -> Iterator[None]:
    """An error is told to the other ranks; a broken exchange in a user's own loop becomes a PeerLost."""
    assert group.watch is not None
    try:
        with group.exchanging("starting"):
            yield
    except PeerLost:
        group.watch.give_up()
        raise
    except BaseException as error:
        if not _is_orderly(error):
            group.watch.failed(f"{type(error).__name__}: {error}")
        raise


def _is_orderly(error: BaseException) -> bool:
    """Whether a rank only does what it was told: Ctrl-C, SIGTERM, sys.exit(0)."""
    return isinstance(error, KeyboardInterrupt) or (isinstance(error, SystemExit) and not error.code)


def _store(placement: Placement, deadline_s: float, is_host: bool | None = None) -> Store:
    """A connection to the store, which rank 0 opens with its first one unless the launcher has done so."""
    if is_host is None:
        is_host = placement.rank == 0 and not placement.launcher_hosts_store
    try:
        store = TCPStore(
            placement.host,
            placement.port,
            None,
            is_host,
            timeout=timedelta(seconds=deadline_s),
            wait_for_workers=False,
        )
        return PrefixStore(f"khop/{placement.attempt}", store)
    except distributed.DistError as error:
        where = f"{placement.host}:{placement.port}"
        if "EADDRINUSE" in str(error):
            raise OSError(
                f"port {placement.port} of this machine is taken, by another run perhaps: "
                "set MASTER_PORT to a free one on every rank"
            ) from None
        raise PeerLost(
            f"rank {placement.rank} found nobody at {where} within {deadline_s:g} s: rank 0 has not started, "
            "or this machine cannot reach it. MASTER_ADDR and MASTER_PORT have to name rank 0's machine"
        ) from error


def _await_all(store: Store, placement: Placement, host: str, deadline_s: float) -> None:
    keys = {rank: f"arrived/{rank}" for rank in range(placement.world_size)}
    try:
        store.set(keys[placement.rank], host)
        missing = wait_for(store, keys, deadline_s)
        here = {rank: store.get(key).decode() for rank, key in keys.items() if rank not in missing}
    except RuntimeError as error:
        if not is_broken(error):
            raise
        raise PeerLost(
            f"rank {placement.rank} lost the store at {placement.host}:{placement.port}"
        ) from error
    if missing:
        arrived = ", ".join(f"{rank} (host {host})" for rank, host in here.items())
        raise PeerLost(
            f"{'rank' if len(missing) == 1 else 'ranks'} {', '.join(map(str, missing))} did not arrive "
            f"within {deadline_s:g} s; those of {placement.world_size} that did: {arrived}"
        )
