"""Starts the ranks of a script: in this process, in spawned processes, or in processes of a launcher.

Apart from the command line, only this module reads the environment, in which launchers pass the rank.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any, Literal

import torch
from torch import distributed

from khop.arguments import (
    LONGEST_S,
    check_word,
    instance_of,
    list_of,
    real_number,
    shown,
    whole_number,
)
from khop.distributed.processes.group import DEADLINE_S, Group
from khop.distributed.processes.launchers import (
    Listening,
    RankInfo,
    gpu_of_rank,
    listening_interface,
    rank_info_of,
)
from khop.distributed.processes.rendezvous import joined
from khop.distributed.processes.spawning import has_main_file, run_ranks
from khop.loading.device.streams import num_gpus
from khop.loading.device.transfer import device_of
from khop.process_tuning import Bind, cores_of_rank, own_cores, places_of_ranks, usable_cores

Work = Callable[..., None]  # (rank, device, *arguments)
# Refused by default: listening on a public address; more than RANKS_PER_CORE processes per core.
Permission = Literal["public", "oversubscribe"]

RANKS_PER_CORE = 4  # default limit: each rank loads torch, and ranks wait for one another

# Variables that are set in a rank's process before torch is loaded, unless the user has set them.
_FOR_RANKS = {
    "OMP_WAIT_POLICY": "passive",  # spinning threads of one rank would occupy the cores of another
    "TORCH_CPP_LOG_LEVEL": "FATAL",  # khop itself reports a lost peer, in one sentence
}
# khop ends a rank that has lost a peer with an error; NCCL's watchdog would abort the process.
_FOR_NCCL = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
# Interface on which gloo and NCCL listen. NCCL takes a name without "=" as a prefix.
_INTERFACE_OF_GLOO, _INTERFACE_OF_NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"


def launch(
    function: Work,
    *,
    procs: int | None = None,
    arguments: Sequence[object] = (),
    device: str | None = None,
    deadline: float = DEADLINE_S,
    interface: str | None = None,
    allow: Sequence[Permission] = (),
    bind: Bind | None = None,
) -> None:
    """Call `function(rank, device, *arguments)` on every rank.

    Under torchrun, srun, Ray Train or an indexed Kubernetes job, this process is one rank and calls
    `function` itself. Otherwise `procs` processes are spawned on this machine. With one process,
    `function` is called in this one. An error in one rank ends all ranks, and is raised in this process.
    GPUs communicate with NCCL, CPUs with gloo.

    Args:
        function: Function to call. Spawned processes import it by its name, so it has to be defined at
            the top level of a module or script (not in a notebook, on stdin or as a lambda), and a script
            has to call `launch` under `if __name__ == "__main__"`.
        procs: Number of processes, by default one per GPU. Not limited under a launcher.
        arguments: Further arguments of `function`; default none.
        device: "cpu" or "cuda", by default "cuda" if a GPU is available.
        deadline: Timeout of a communication in seconds, after which all ranks end with an error that names
            the missing ranks; default 300.
        interface: Interface on which ranks listen: its name, its address, or a network that contains its
            address. By default loopback on one machine, otherwise the interface with the route to rank 0.
        allow: Permissions: "oversubscribe" for more than 4 processes per core that this process may use,
            "public" for a public address, which states that a firewall protects it. Default none.
        bind: "cores" assigns separate cores to each process of a machine; "numa" also keeps the cores and the
            memory of a process on one NUMA node; "none" does not bind processes. Processes that are already
            bound by their launcher, such as srun, stay bound. Default: "numa" on machines with several NUMA
            nodes, else "none".
    Raises:
        ValueError: `function` cannot be imported by other processes, a permission is missing, or there are
            more processes to bind than cores.
        PeerLost: A rank did not answer within `deadline`.
    Example:
        >>> def train(rank, device, epochs):
        ...     print(rank, device, epochs)
        >>> khop.launch(train, procs=1, device="cpu", arguments=[3])
        0 cpu 3
    """
    if not callable(function):
        raise ValueError(f"function {shown(function)}: must be a function of (rank, device, *arguments)")
    list_of("arguments", arguments, "(folder, epochs)")
    if not 0 < real_number("deadline", deadline) <= LONGEST_S:
        raise ValueError(f"deadline {deadline}: must be a number of seconds above 0, at most {LONGEST_S:g}")
    if device is not None:
        device_of(device)
    if interface is not None:
        instance_of("interface", interface, str, "must be a name or an address, as text")
    for permission in list_of("allow", allow, '["oversubscribe"]'):
        check_word("allow", permission, Permission)
    if bind is not None:
        check_word("bind", bind, Bind)
    listening = Listening(interface, "public" in allow)
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    rank_info = rank_info_of(os.environ)
    if rank_info is not None:
        if procs not in (None, rank_info.world_size):
            ranks = f"{rank_info.world_size} rank{'s' * (rank_info.world_size > 1)}"
            raise ValueError(f"procs {procs}: the launcher has already started {ranks}; leave procs out")
        run_rank(rank_info, function, arguments, kind, deadline, listening, bind)
        return
    count = procs if procs is not None else max(1, torch.cuda.device_count() if kind == "cuda" else 1)
    count = check_procs(count, kind, allow)
    if count == 1:
        function(0, torch.device(kind), *arguments)
        return
    _check_main_is_guarded()
    for each in (function, *arguments):
        _check_importable(each)
    places = places_of_ranks(count, bind)

    def bound(rank: int) -> AbstractContextManager[None]:
        return places[rank].inherited() if places else nullcontext()

    with _environment(_unset(_FOR_RANKS)):
        run_ranks(run_rank, count, (function, _Arguments(arguments), kind, deadline, listening), bound)


def _check_main_is_guarded() -> None:
    """End a rank that calls `launch` again while it imports the user's script; rank 0 prints the reason."""
    process = multiprocessing.current_process()
    if getattr(process, "_inheriting", False):  # multiprocessing's mark of a process that imports the script
        reason = (
            "khop.launch was called while a rank imported the script: call it under\n"
            'if __name__ == "__main__":\n'
            "so that ranks can import the functions of the script"
        )
        raise SystemExit(reason if process.name == "rank 0" else 1)


def _check_importable(given: object) -> None:
    """Raise ValueError if a new process cannot import a function, or the class of an object."""
    while isinstance(given, partial):
        given = given.func
    defined: Any = getattr(given, "__func__", given)
    defined = defined if hasattr(defined, "__qualname__") else type(given)
    name, main = defined.__qualname__, sys.modules["__main__"]
    if "<lambda>" in name or "<locals>" in name:
        kind = "a lambda" if name.endswith("<lambda>") else "defined inside a function"
        raise ValueError(
            f"{name}: is {kind}, but the processes of ranks import functions by name; define it at the top "
            "level of a module, and give its arguments as arguments=[...]"
        )
    if defined.__module__ == "__main__" and not has_main_file(main):
        kind = "class" if isinstance(defined, type) else "function"
        raise ValueError(
            f"{kind} {name} is defined in a notebook, on stdin or by python -c, from which the processes of "
            f"ranks cannot import; move it to a file such as train.py, and give train.{name}, or use procs=1"
        )


class _Arguments:
    """Arguments of a spawned rank, unpickled after the rendezvous, which a partitioned graph needs."""

    def __init__(self, arguments: Sequence[object]) -> None:
        self._arguments = tuple(arguments)

    def __iter__(self) -> Iterator[object]:
        return iter(self._arguments)

    def __reduce__(self) -> tuple[Callable[..., _Pickled], tuple[bytes]]:
        return _Pickled, (bytes(ForkingPickler.dumps(self._arguments)),)


@dataclass(frozen=True)
class _Pickled:
    """The same arguments in the spawned rank."""

    content: bytes

    def __iter__(self) -> Iterator[object]:
        return iter(ForkingPickler.loads(self.content))


def check_procs(procs: int, device: str, allow: Sequence[Permission] = ()) -> int:
    """Return `procs` as an int; ValueError with the limit if this machine cannot run this many ranks."""
    procs = whole_number("procs", procs, 1)
    gpus = torch.cuda.device_count()
    if torch.device(device).type == "cuda" and procs > gpus:
        raise ValueError(
            f"procs {procs}: each needs a separate GPU, and this machine has {gpus}; use device cpu"
        )
    cores = usable_cores()
    if procs > RANKS_PER_CORE * cores and "oversubscribe" not in allow:
        raise ValueError(
            f"procs {procs}: more than {RANKS_PER_CORE} per core, and this process may use {cores} of this "
            f"machine; use {RANKS_PER_CORE * cores} at most, or allow more: --oversubscribe, "
            'allow=["oversubscribe"] in khop.launch'
        )
    return procs


def launched_by_others() -> RankInfo | None:
    """Return the rank that a launcher assigned to this process; None without a launcher."""
    return rank_info_of(os.environ)


def run_rank(
    rank_info: RankInfo,
    function: Work,
    arguments: Iterable[object],
    kind: str,
    deadline: float,
    listening: Listening,
    bind: Bind | None = "none",
) -> None:
    """Run one rank: join the others, call the function, leave.

    `bind` applies to ranks started by other launchers; ranks that khop starts are bound already.
    """
    device = torch.device(kind)
    if device.type == "cuda":
        device = torch.device("cuda", gpu_of_rank(rank_info.local_rank, num_gpus()))
        torch.cuda.set_device(device)
    torch.set_num_threads(cores_of_rank(rank_info.local_world_size))
    if distributed.is_initialized():  # initialized by the launcher, e.g. Ray Train
        function(rank_info.rank, device, *arguments)
        return
    said = listening.interface or os.environ.get(_INTERFACE_OF_GLOO, "").split(",")[0]
    interface = listening_interface(replace(listening, interface=said), rank_info)
    named = {_INTERFACE_OF_GLOO: interface.name, _INTERFACE_OF_NCCL: f"={interface.name}"}
    variables = dict(named if listening.interface else _unset(named))
    if device.type == "cuda":
        variables |= _unset(_FOR_NCCL)
    with _environment(variables), joined(rank_info, device, deadline, interface) as group:
        _bind(group, bind)
        function(rank_info.rank, device, *arguments)


def _bind(group: Group, bind: Bind | None) -> None:
    """Bind the ranks of each machine that may all run on the same cores; others are bound already."""
    if group.world_size == 1 or not hasattr(os, "sched_getaffinity"):
        return
    host, mine = socket.gethostname(), os.sched_getaffinity(0)
    told = json.dumps([host, group.local_rank, sorted(mine)]).encode()
    found = [json.loads(content) for content in group.gather_bytes(told)]
    others = [set(cores) for there, rank, cores in found if there == host and rank != group.local_rank]
    if all(cores == mine for cores in others):
        places = places_of_ranks(group.local_world_size, bind)
        if not places:
            return
        places[group.local_rank].bind_process()
    elif any(cores & mine for cores in others):
        return
    own_cores()
    torch.set_num_threads(cores_of_rank(group.local_world_size))


def _unset(values: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables that the user has not set."""
    return {name: value for name, value in values.items() if name not in os.environ}


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables during the block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
