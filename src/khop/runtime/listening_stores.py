"""The key-value store of a rendezvous: hosted on one address of this machine, or reached at another."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Mapping
from datetime import timedelta

from torch import distributed

from khop.errors import PeerLost
from khop.runtime.torch_types import Store, TCPStore

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
            f"port {port} of this machine is taken, by another run perhaps: "
            "set MASTER_PORT to a free one on every rank"
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
            f"rank {rank} found nobody at {host}:{port} within {deadline_s:g} s: rank 0 has not started, "
            "or this machine cannot reach it. MASTER_ADDR and MASTER_PORT have to name rank 0's machine"
        ) from error


def wait_for(store: Store, keys: Mapping[int, str], deadline_s: float) -> list[int]:
    """Wait until the store has the keys of all ranks; return the ranks with keys missing at the deadline."""
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
