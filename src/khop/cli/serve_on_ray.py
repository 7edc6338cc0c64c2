"""Implementation of `khop serve --on-ray N`: Ray places servers on machines and restarts them.

Only options and addresses pass through Ray, never batches, graphs or tokens.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayError

from khop.cli.server_process import ANY_HOST, ServeRequest, run_server, say
from khop.servers.access import Address
from khop.servers.main_loop import Life

_POLL_S = 0.5
_WAITS_S = 10.0  # wait for a free machine before this is reported
_AGAIN_S = 5.0  # pause after a server failed to start
_GRACE_S = 5.0  # in addition to the drain time


@dataclass(frozen=True)
class State:
    """A server as its process reports it."""

    pid: int
    address: str | None = None  # None: it has not started yet
    failure: str | None = None  # error of the last attempt to start
    has_ended: bool = False
    dropped: bool = False  # dropped requests, when it ended


class KhopServer:
    """A server in a Ray actor, which Ray restarts on the same port if it ends unexpectedly."""

    def __init__(self, request: ServeRequest) -> None:
        self._stop = threading.Event()
        self._state = State(os.getpid())
        threading.Thread(target=self._run, args=(_on_this_machine(request),), daemon=True).start()

    def state(self) -> State:
        """Return the state of this process."""
        return self._state

    def drain(self) -> None:
        """Finish the batches in progress, then exit."""
        self._stop.set()

    def _run(self, request: ServeRequest) -> None:
        while not self._state.has_ended:
            try:
                dropped = not run_server(request, self._stop, self._serves)
                self._state = replace(self._state, has_ended=True, dropped=dropped)
            except Exception as error:  # reported, and retried, because the cause may be temporary
                self._state = State(os.getpid(), failure=str(error), has_ended=self._stop.wait(_AGAIN_S))

    def _serves(self, graph: str, address: Address) -> None:
        self._state = State(os.getpid(), str(address))


def _on_this_machine(request: ServeRequest) -> ServeRequest:
    """Replace the wildcard address by the address of this machine in the cluster."""
    if request.listen.host not in ANY_HOST:
        return request
    return replace(request, listen=Address(ray.util.get_node_ip_address(), request.listen.port))


@dataclass
class _Replica:
    """One of the servers, as seen by the process that supervises them."""

    number: int
    actor: Any
    asked: Any  # reference to its next state
    begun: float = field(default_factory=time.monotonic)
    state: State | None = None

    def ask(self) -> None:
        """Request the state again; Ray answers when the process exists."""
        self.asked = self.actor.state.remote()


def serve_on_ray(
    requests: Sequence[ServeRequest], stop: Callable[[], AbstractContextManager[threading.Event]]
) -> bool:
    """Serve until the event of `stop` is set, or until all servers are idle.

    `stop` is called after Ray has set its own signal handlers. Return whether no request was dropped.
    """
    try:
        # The cluster of RAY_ADDRESS, or of `ray start` on this machine.
        ray.init(include_dashboard=False, logging_level=logging.WARNING)
    except (RayError, OSError, RuntimeError, ValueError) as error:
        raise ValueError(f"--on-ray: Ray did not start: {error}") from None
    try:
        with stop() as stopping:
            _check_machines(requests)
            replicas = _placed(requests)
            try:
                _watch(replicas, stopping)
            finally:
                ended = _drain(replicas)
            return ended
    finally:
        ray.shutdown()


def _check_machines(requests: Sequence[ServeRequest]) -> None:
    machines = sum(node["Alive"] for node in ray.nodes())
    if machines > 1 and requests[0].listen.host not in ANY_HOST:
        raise ValueError(
            f"--on-ray: the cluster has {machines} machines, and servers on {requests[0].listen.host} are "
            "reached from their own machine only; give --listen 0.0.0.0:PORT, tokens and certificates"
        )


def _placed(requests: Sequence[ServeRequest]) -> list[_Replica]:
    """Request one process per server from Ray, spread over the machines."""
    cores = max(1, int(ray.cluster_resources().get("CPU", 1)) // len(requests))
    kind = ray.remote(KhopServer)
    replicas = []
    for number, request in enumerate(requests):
        at_once = request.options.at_once or cores
        placed = kind.options(
            num_cpus=at_once, max_restarts=-1, max_task_retries=-1, scheduling_strategy="SPREAD"
        )
        actor = placed.remote(replace(request, options=replace(request.options, at_once=at_once)))
        replicas.append(_Replica(number, actor, actor.state.remote()))
    return replicas


def _watch(replicas: Sequence[_Replica], stop: threading.Event) -> None:
    said = time.monotonic()
    while not stop.wait(_POLL_S) and not all(each.state and each.state.has_ended for each in replicas):
        for each in _answered(replicas, 0):
            _note(each, _state_of(each))
            each.ask()
        missing = [each.number for each in replicas if each.state is None]
        if missing and time.monotonic() - said > _WAITS_S:
            free = ray.available_resources().get("CPU", 0)
            say(f"servers {missing} wait for a machine with enough free cores; Ray has {free:g} in total")
            said = time.monotonic()


def _answered(replicas: Sequence[_Replica], seconds: float) -> list[_Replica]:
    ready, _ = ray.wait([each.asked for each in replicas], num_returns=len(replicas), timeout=seconds)
    return [each for each in replicas if each.asked in ready]


def _state_of(replica: _Replica) -> State:
    try:
        state: State = ray.get(replica.asked)
        return state
    except ActorDiedError as error:
        raise ValueError(f"server {replica.number}: Ray no longer restarts it ({error})") from None


def _note(replica: _Replica, state: State) -> None:
    """Print the state changes of a server. A failure of the first start ends the command."""
    before, replica.state = replica.state, state
    if state.failure is not None and (before is None or before.address is None):
        raise ValueError(f"server {replica.number}: {state.failure}")
    if before is not None and state.pid != before.pid:
        say(f"server {replica.number} has ended, and Ray has restarted it")
    if state.failure is not None and (before is None or state.failure != before.failure):
        say(f"server {replica.number} does not start ({state.failure}); trying again")
    if state.address is not None and (before is None or before.address != state.address):
        print(f"serving on {state.address}", flush=True)


def _drain(replicas: Sequence[_Replica]) -> bool:
    """Shut down all servers gracefully; return whether no request was dropped."""
    running = [each for each in replicas if each.state is not None and not each.state.has_ended]
    for each in running:
        each.actor.drain.remote()
        each.ask()
    last = time.monotonic() + Life().drain_s + _GRACE_S
    while running and time.monotonic() < last:
        for each in _answered(running, _POLL_S):
            each.state = _state_of(each)
            each.ask()
        running = [each for each in running if each.state is not None and not each.state.has_ended]
        time.sleep(_POLL_S / 5)
    return not running and not any(each.state is not None and each.state.dropped for each in replicas)
