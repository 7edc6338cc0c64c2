"""What do batches from servers cost, and what happens when a server is killed?

Servers run as processes of this machine and serve the graph "medium" (1 M nodes, 100 float32 columns). Rounds
of a local loader, of loaders over one and two servers, of a server that has its answers ready, and of plain
TCP of as many bytes are interleaved.

* CPU: seconds of client and servers per batch, asked for one by one. "beyond making": less the local loader.
* wall: seconds per batch of an epoch. On a machine with few cores sampling is not hidden: "ready answers" are
  batches that the server made before, asked for one by one.
* a kill: the longest wait for a batch after one of two servers is killed, and the time until a new one
  answers, of which it is a process of Python that imports torch, pyarrow and khop.
* memory: the private memory of a server over 1,000 batches of several clients at once, and the bound: memory
  at the start + (batches made at once + batches on their way) x the size of a batch.

`ratio` is over the peer. The load of the machine is among the figures. Takes 2 to 15 minutes on two cores.

usage: python benchmarks/servers.py [--batches 8] [--rounds 3] [--clients 8] [--memory-batches 1000]
       [--parts costs,kill,memory]
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from graphs import make
from harness import Figure, report

import khop
from khop.batch import num_bytes
from khop.process_tuning import tune_memory

PIECE = 1 << 20
SMALL = 256  # seeds of a batch of the memory figures, of which there are many
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


READY = """
import sys
import khop
from khop.api.serve import service_of
from khop.servers.access import Role, ServerSecurity
from khop.servers.access import Address
from khop.servers.request_handler import QueueLimits
from khop.servers.flight_server import served
from khop.process_tuning import tune_memory
from khop.servers.request_handler import RequestHandler

class Kept:
    role = Role.CLIENT
    def __init__(self, pieces):
        self.pieces = pieces
    def run(self, cancelled):
        return iter(self.pieces)

class Ready:
    def __init__(self, inner):
        self.inner, self.kept, self.name = inner, {}, inner.name
        self.description, self.counters = inner.description, inner.counters
    def accept(self, request):
        request = bytes(request)
        if request not in self.kept:
            self.kept[request] = Kept(list(self.inner.accept(request).run()))
        return self.kept[request]

tune_memory()
handler = RequestHandler(Ready(service_of(sys.argv[1])), QueueLimits())
server = served(handler, Address("127.0.0.1", 0), ServerSecurity())
print("serving on", f"127.0.0.1:{server.port}", flush=True)
sys.stdin.read()
"""


@contextmanager
def serving(graph: Path, listen: str = "127.0.0.1:0") -> Iterator[Served]:
    """One `khop serve`, until the block ends."""
    with started([sys.executable, "-m", "khop", "serve", str(graph), "--listen", listen]) as server:
        yield server


@contextmanager
def started(words: list[str]) -> Iterator[Served]:
    """A process that prints its address, until the block ends."""
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(words, text=True, **streams) as process:
        assert process.stdout is not None
        try:
            yield Served(process, process.stdout.readline().split()[-1])
        finally:
            process.kill()


def loader_of(graph: khop.Graph, seed: int = 0, seeds: int = 1024) -> khop.Loader:
    """Three hops, all columns."""
    sampler = khop.NeighborSampler(graph, fanouts=[15, 10, 5])
    return khop.Loader(sampler, graph.split("train"), seeds, shuffle=True, columns=["x"], seed=seed)


def endless(loader: khop.Loader) -> Generator[khop.Batch]:
    """Yield the batches of one epoch after another."""
    for epoch in itertools.count():
        yield from loader.epoch(epoch)


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
    epochs = endless(loader)
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


def ready_cost(loader: khop.Loader, batches: int, server: Served) -> Cost:
    """Ask for the same batches one by one: the server has made them before."""
    for _ in range(2):  # the first requests carry settings, and those after it do not
        for step in range(batches):
            loader.batch(0, step)
    before, started, size = own_cpu() + server.cpu(), time.perf_counter(), 0
    for step in range(batches):
        size += num_bytes(loader.batch(0, step))
    wall = time.perf_counter() - started
    return Cost((own_cpu() + server.cpu() - before) / batches, wall / batches, size / batches)


def costs(graph: Path, batches: int, rounds: int) -> list[Figure]:
    """Interleaved rounds of all ways."""
    ready = started([sys.executable, "-c", READY, str(graph)])
    with serving(graph) as one, serving(graph) as two, ready as made:
        over_ready = loader_of(khop.connect([made.address]))
        local = loader_of(khop.open_graph(graph))
        over_one = loader_of(khop.connect([one.address]))
        over_two = loader_of(khop.connect([one.address, two.address]))
        check_bits(local, over_two)
        names = ("local", "one server", "two servers", "ready answers", "TCP")
        found: dict[str, list[Cost]] = {name: [] for name in names}
        for number in range(rounds):
            found["local"].append(cost(local, number, batches, []))
            found["one server"].append(cost(over_one, number, batches, [one]))
            found["two servers"].append(cost(over_two, number, batches, [one, two]))
            found["ready answers"].append(ready_cost(over_ready, batches, made))
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
        Figure("CPU of ready answers, over plain TCP", cpu["ready answers"], "s", "TCP",
               cpu["ready answers"] / cpu["TCP"]),
        Figure("wall of ready answers, over plain TCP", wall["ready answers"], "s", "TCP",
               wall["ready answers"] / wall["TCP"]),
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
        epoch = endless(loader_of(khop.connect([each.address for each in servers])))
        for _ in range(2 * WARM):
            next(epoch)
        usual, by_server, first = [], [0, 0], max(batches, 40)
        for _ in range(first):
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
        begun = time.perf_counter()
        new = stack.enter_context(serving(graph, servers[0].address))
        khop.connect([servers[0].address])
        restart = time.perf_counter() - begun
        start_cpu = new.cpu()
    return [
        Figure("share of batches of the first of two servers", by_server[0] / first, "1"),
        Figure("longest wait for a batch, usual", max(usual), "s"),
        Figure("longest wait for a batch after a kill", max(gaps), "s"),
        Figure("gap at a kill beyond the longest usual wait", max(0.0, max(gaps) - max(usual)), "s"),
        Figure("restart of a server until it answers", restart, "s"),
        Figure("CPU of a server until it answers", start_cpu, "s"),
    ]


def memory(graph: Path, clients: int, batches: int) -> list[Figure]:
    """Private memory of a server whose clients read at the same time, half-way and at the end."""
    with serving(graph) as server:
        start = server.private_bytes()
        seen: list[int] = []
        sizes: list[int] = []
        done = threading.Event()

        def watch() -> None:
            while not done.wait(0.05):
                seen.append(server.private_bytes())

        def read(number: int) -> None:
            loader, left = loader_of(khop.connect([server.address]), number, SMALL), -(-batches // clients)
            for batch in itertools.islice(endless(loader), left):
                sizes.append(num_bytes(batch))

        threads = [threading.Thread(target=read, args=(number,)) for number in range(clients)]
        watcher = threading.Thread(target=watch)
        for thread in (watcher, *threads):
            thread.start()
        for thread in threads:
            thread.join()
        done.set()
        watcher.join()
    half = len(seen) // 2
    # khop serve makes a batch per core at once; two of each connection are on their way, and 16 at most.
    bound = start + ((os.cpu_count() or 1) + min(16, 2 * clients)) * max(sizes)
    notes = {"clients": clients, "batches": len(sizes), "at start": start, "largest batch": max(sizes)}
    first, second = max(seen[:half]), max(seen[half:])
    return [
        Figure("most private memory, first half of the batches", first, "bytes", notes=notes),
        Figure("most private memory, second half of the batches", second, "bytes", notes=notes),
        Figure("growth of private memory from the first half to the second", second / first, "1"),
        Figure("most private memory over its bound", max(seen), "bytes", "bound", max(seen) / bound),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--memory-batches", type=int, default=1000)
    parser.add_argument("--parts", default="costs,kill,memory", help="figures, separated by commas")
    parser.add_argument("--graph", default="medium", help="graph of benchmarks/graphs.py")
    given = parser.parse_args()
    before = os.getloadavg()[0]
    tune_memory()  # as the command does; servers are commands
    graph = make(given.graph) / "graph"
    ways: dict[str, Callable[[], list[Figure]]] = {
        "costs": lambda: costs(graph, given.batches, given.rounds),
        "kill": lambda: after_a_kill(graph, given.batches),
        "memory": lambda: memory(graph, given.clients, given.memory_batches),
    }
    figures = [figure for part in given.parts.split(",") for figure in ways[part]()]
    load = os.getloadavg()[1]  # with the benchmark's own processes
    figures.insert(0, Figure("load of the machine before, one minute", before, "1"))
    report("servers", [*figures, Figure("load of the machine, five minutes", load, "1")])


if __name__ == "__main__":
    main()
