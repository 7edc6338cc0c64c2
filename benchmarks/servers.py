"""What do batches from servers cost, and what happens when a server is killed?

Servers run as processes of this machine and serve the graph "medium" (1 M nodes, 100 float32 columns). Rounds
of a local loader, of loaders over one and two servers, and of plain TCP of as many bytes are interleaved.

* CPU: seconds of client and servers per batch, asked for one by one. "beyond making": less the local loader.
* wall: seconds per batch of an epoch; on a machine with few cores, sampling is not hidden.
* a kill: the longest wait for a batch after one of two servers is killed, and the time until a new one is up.
* memory: the private memory of a server over all batches of several clients.

`ratio` is over the peer. The load of the machine is among the figures.

usage: python benchmarks/servers.py [--batches 8] [--rounds 3] [--clients 8]
"""

from __future__ import annotations

import argparse
import os
import resource
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from graphs import make
from harness import Figure, report

import khop
from khop.batch import num_bytes

PIECE = 1 << 20
WARM = 4  # batches of each process before it is measured
TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cost:
    """Of one batch."""

    cpu: float  # seconds, client and servers
    wall: float
    size: float  # bytes


@dataclass
class Served:
    """A server in a process of its own."""

    process: subprocess.Popen[str]
    address: str

    def cpu(self) -> float:
        """User and system seconds so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICK

    def private_bytes(self) -> int:
        """Memory that is not a file's."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no RssAnon")


@contextmanager
def serving(graph: Path, listen: str = "127.0.0.1:0") -> Iterator[Served]:
    """One `khop serve`, until the block ends."""
    words = [sys.executable, "-m", "khop", "serve", str(graph), "--listen", listen]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield Served(process, process.stdout.readline().split()[-1])
        finally:
            process.kill()


def loader_of(graph: khop.Graph, seed: int = 0) -> khop.Loader:
    """1,024 seeds, three hops, all columns."""
    sampler = khop.NeighborSampler(graph, fanouts=[15, 10, 5])
    return khop.Loader(sampler, graph.split("train"), 1024, shuffle=True, columns=["x"], seed=seed)


def own_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def cost(loader: khop.Loader, epoch: int, batches: int, servers: list[Served]) -> Cost:
    """Ask for some batches one by one, then read as many of an epoch after two that warm up."""
    for step in range(WARM * (len(servers) or 1)):  # the first batches of a process pay page faults: 15 x
        loader.batch(epoch, step)
    before, size = own_cpu() + sum(each.cpu() for each in servers), 0
    for step in range(batches):
        size += num_bytes(loader.batch(epoch, step))
    cpu = own_cpu() + sum(each.cpu() for each in servers) - before
    epochs = loader.epoch(epoch)
    next(epochs), next(epochs)
    started = time.perf_counter()
    for _ in range(batches):
        next(epochs)
    wall = time.perf_counter() - started
    epochs.close()
    return Cost(cpu / batches, wall / batches, size / batches)


TCP = """
import socket, sys
size, piece = int(sys.argv[1]), int(sys.argv[2])
block = memoryview(bytearray(size))
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    with server.accept()[0] as client:
        while client.recv(1):
            for at in range(0, size, piece):
                client.sendall(block[at : at + piece])
"""


def plain_tcp(size: int, batches: int) -> Cost:
    """The same bytes over one connection, in pieces, into memory that is allocated once."""
    words = [sys.executable, "-c", TCP, str(size), str(PIECE)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        server, block = Served(process, ""), memoryview(bytearray(size))
        with socket.create_connection(("127.0.0.1", int(process.stdout.readline()))) as client:
            _receive(client, block)
            before, started = own_cpu() + server.cpu(), time.perf_counter()
            for _ in range(batches):
                _receive(client, block)
            wall = time.perf_counter() - started
            cpu = own_cpu() + server.cpu() - before
    return Cost(cpu / batches, wall / batches, size)


def _receive(client: socket.socket, block: memoryview) -> None:
    client.sendall(b"x")
    at = 0
    while at < len(block):
        at += client.recv_into(block[at : at + PIECE])


def costs(graph: Path, batches: int, rounds: int) -> list[Figure]:
    """Interleaved rounds of all ways."""
    with serving(graph) as one, serving(graph) as two:
        local = loader_of(khop.open_graph(graph))
        over_one = loader_of(khop.connect([one.address]))
        over_two = loader_of(khop.connect([one.address, two.address]))
        check_bits(local, over_two)
        found: dict[str, list[Cost]] = {"local": [], "one server": [], "two servers": [], "TCP": []}
        for number in range(rounds):
            found["local"].append(cost(local, number, batches, []))
            found["one server"].append(cost(over_one, number, batches, [one]))
            found["two servers"].append(cost(over_two, number, batches, [one, two]))
            found["TCP"].append(plain_tcp(int(found["local"][-1].size), 4 * batches))
    return _figures(found)


def _figures(found: dict[str, list[Cost]]) -> list[Figure]:
    def middle(name: str, of: Callable[[Cost], float]) -> float:
        return statistics.median(map(of, found[name]))

    cpu = {name: middle(name, lambda each: each.cpu) for name in found}
    wall = {name: middle(name, lambda each: each.wall) for name in found}
    figures = [Figure("bytes of a batch", middle("local", lambda each: each.size), "bytes")]
    figures += [Figure(f"CPU per batch, {name}", value, "s") for name, value in cpu.items()]
    figures += [Figure(f"wall per batch, {name}", value, "s") for name, value in wall.items()]
    beyond = cpu["one server"] - cpu["local"]
    figures += [
        Figure("CPU beyond making, over plain TCP", beyond, "s", "TCP", beyond / cpu["TCP"]),
        Figure("CPU per batch, two servers over one", cpu["two servers"], "s", "one server",
               cpu["two servers"] / cpu["one server"]),
    ]  # fmt: skip
    return figures


def check_bits(local: khop.Loader, remote: khop.Loader) -> None:
    """Compare two batches before anything is measured."""
    for step in range(2):
        one, other = local.batch(99, step), remote.batch(99, step)
        for node_type, columns in one.columns.items():
            assert torch.equal(columns["x"], other.columns[node_type]["x"])


def after_a_kill(graph: Path, batches: int) -> list[Figure]:
    """Kill one of two servers, then start it again."""
    with ExitStack() as stack:
        servers = [stack.enter_context(serving(graph)) for _ in range(2)]
        epoch = loader_of(khop.connect([each.address for each in servers])).epoch(0)
        for _ in range(2 * WARM):
            next(epoch)
        usual, by_server = [], [0.0, 0.0]
        for _ in range(batches):
            started = time.perf_counter()
            by_server[int(next(epoch).traffic["server"])] += 1
            usual.append(time.perf_counter() - started)
        servers[0].process.kill()
        gaps = []
        for _ in range(batches):
            started = time.perf_counter()
            next(epoch)
            gaps.append(time.perf_counter() - started)
        epoch.close()
        servers[0].process.wait()
        started = time.perf_counter()
        stack.enter_context(serving(graph, servers[0].address))
        khop.connect([servers[0].address])
        restart = time.perf_counter() - started
    return [
        Figure("share of batches of the first of two servers", by_server[0] / batches, "1"),
        Figure("longest wait for a batch, usual", max(usual), "s"),
        Figure("longest wait for a batch after a kill", max(gaps), "s"),
        Figure("restart of a server until it answers", restart, "s"),
    ]


def memory(graph: Path, clients: int, batches: int) -> list[Figure]:
    """Private memory of a server whose clients read at the same time, half-way and at the end."""
    with serving(graph) as server:
        start = server.private_bytes()
        seen: list[int] = []
        done = threading.Event()

        def watch() -> None:
            while not done.wait(0.05):
                seen.append(server.private_bytes())

        def read(number: int) -> None:
            loader = loader_of(khop.connect([server.address]), seed=number)
            for _ in zip(range(batches), loader.epoch(0), strict=False):
                continue

        threads = [threading.Thread(target=read, args=(number,)) for number in range(clients)]
        watcher = threading.Thread(target=watch)
        for thread in (watcher, *threads):
            thread.start()
        for thread in threads:
            thread.join()
        done.set()
        watcher.join()
    half = len(seen) // 2
    notes = {"clients": clients, "batches": clients * batches, "at start": start}
    return [
        Figure("most private memory, first half of the batches", max(seen[:half]), "bytes", notes=notes),
        Figure("most private memory, second half of the batches", max(seen[half:]), "bytes", notes=notes),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=8)
    given = parser.parse_args()
    khop.tune_memory()  # as the command does; servers are commands
    graph = make("medium") / "graph"
    figures = costs(graph, given.batches, given.rounds)
    figures += after_a_kill(graph, given.batches)
    figures += memory(graph, given.clients, given.batches)
    load = os.getloadavg()[1]
    report("servers", [*figures, Figure("load of the machine, five minutes", load, "1")])


if __name__ == "__main__":
    main()
