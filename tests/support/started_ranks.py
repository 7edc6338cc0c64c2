"""Processes that become ranks again and again: tests share them, as importing torch takes them seconds."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import pytest

import khop
from support.commands import free_port
from support.covered import announce
from support.gate import WAIT_S

SPAWNING = get_context("spawn")


def serve(orders: Connection) -> None:
    """Be a rank as often as the test process says, as under a launcher; end with that process."""
    while True:
        try:
            environment, function, arguments = orders.recv()
        except EOFError:
            return
        os.environ.update(environment)
        try:
            khop.launch(function, arguments=arguments, device="cpu", deadline=WAIT_S)
        except BaseException:
            orders.send(traceback.format_exc())
        else:
            orders.send("")


class StartedRanks:
    """Ranks of one machine. Tests of how ranks start, fail or end call `khop.launch` instead.

    So do tests that run Hypothesis on ranks: its examples depend on the modules that a process has loaded.
    """

    def __init__(self) -> None:
        self._ranks: list[tuple[BaseProcess, Connection]] = []

    def launch(self, function: Callable[..., None], procs: int, arguments: tuple[object, ...]) -> None:
        """Call `function(rank, device, *arguments)` on as many ranks; AssertionError if one fails."""
        try:
            failures = self._failures(function, procs, arguments)
        except BaseException:  # a timeout of the test: what comes later is no answer to another order
            self.end()
            raise
        if any(failures):
            self.end()  # others are started for the next test
        assert not any(failures), "\n".join(failures)

    def end(self) -> None:
        """End all processes."""
        for process, orders in self._ranks:
            orders.close()
            process.join(5)
            process.kill()  # one may still wait for others
            process.join()
        self._ranks.clear()

    def _failures(
        self, function: Callable[..., None], procs: int, arguments: tuple[object, ...]
    ) -> list[str]:
        while len(self._ranks) < procs:
            self._start()
        named = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": procs}
        sizes = {**named, "LOCAL_WORLD_SIZE": procs}
        for rank, (_, orders) in enumerate(self._ranks[:procs]):
            given = {**sizes, "RANK": rank, "LOCAL_RANK": rank}
            environment = {name: str(value) for name, value in given.items()}
            orders.send((environment, function, arguments))
        return [self._answer(orders) for _, orders in self._ranks[:procs]]

    def _start(self) -> None:
        here, there = SPAWNING.Pipe()
        process = SPAWNING.Process(target=serve, args=(there,), daemon=True)
        process.start()
        there.close()
        self._ranks.append((process, here))

    def _answer(self, orders: Connection) -> str:
        try:
            return str(orders.recv())
        except EOFError:
            return "a rank has ended"


@pytest.fixture(scope="session")
def ranks() -> Iterator[StartedRanks]:
    """Processes that tests share as ranks."""
    announce()
    started = StartedRanks()
    yield started
    started.end()
