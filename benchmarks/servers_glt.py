"""How many batches do servers make beside GraphLearn-for-PyTorch's, and what if one of two is killed?

Two servers and a client are processes of this machine, without a GPU. Both libraries cut the graph "medium"
into two random parts, one for each server; khop is also measured with the whole graph on both. Fanouts, batch
size, columns and prefetched batches are equal, and the rounds are interleaved.

* batches: per second of an epoch, after the first few of each process; and CPU seconds per batch of all
  processes of servers and client.
* a kill: one server is killed after some batches. Counted are the batches that the client gets within a
  minute after it, and the longest wait for one of them.

GraphLearn-for-PyTorch needs an environment of its own (benchmarks/set-up-peers): its wheels need a torch with
CUDA, which also runs without a GPU. `ratio` is khop over the peer for batches per second, and the peer over
khop for CPU.

usage: python benchmarks/servers_glt.py [--batches 16] [--rounds 3] [--graph medium]
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from graphs import make
from harness import HERE, PEERS, Figure, report

import khop
from khop.servers.access import Role, write_token

TICK = os.sysconf("SC_CLK_TCK")
WARM = 4  # batches before the measured ones
BATCH_SIZE, FANOUTS = 1024, [15, 10, 5]
KILL_AFTER, KILL_WAIT_S = 6, 60.0  # batches, and seconds in which further ones count
SCRIPT = HERE / "contenders" / "glt_servers.py"
CLIENT = """
import json, sys, time
import khop
from khop.batch import num_bytes
from khop.process_tuning import tune_memory
token, batches, size, fanouts, *addresses = sys.argv[1:]
tune_memory()
graph = khop.connect(addresses, token_file=token or None)
sampler = khop.NeighborSampler(graph, fanouts=json.loads(fanouts))
loader = khop.Loader(sampler, graph.split("train"), int(size), shuffle=True, columns=["x"], prefetch=4)
for number, batch in zip(range(int(batches)), loader.epoch(0)):
    line = {"batch": number, "at": time.monotonic(), "bytes": num_bytes(batch)}
    print(json.dumps(line), flush=True)
"""


@dataclass
class Running:
    """A process in a session of its own, with the processes that it starts."""

    process: subprocess.Popen[str]
    lines: queue.Queue[str] = field(default_factory=queue.Queue)

    @classmethod
    def of(cls, words: Sequence[str]) -> Running:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        running = cls(subprocess.Popen(words, text=True, start_new_session=True, **streams))
        threading.Thread(target=running._read, daemon=True).start()
        return running

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)

    def cpu(self) -> float:
        """User and system seconds of all processes of the session that are running."""
        return sum(
            (int(fields[11]) + int(fields[12])) / TICK
            for fields in _processes()
            if int(fields[3]) == self.process.pid
        )

    def kill(self) -> None:
        """Kill all processes of the session."""
        subprocess.run(["pkill", "-KILL", "-s", str(self.process.pid)], check=False)
        self.process.wait()


def _processes() -> Iterator[list[str]]:
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            yield path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended


@dataclass(frozen=True)
class Epoch:
    """The measured batches of a client."""

    per_second: float
    cpu: float  # seconds per batch
    size: float  # bytes of a batch


@dataclass(frozen=True)
class Way:
    """Two servers and a client of a library."""

    servers: Sequence[Sequence[str]]
    prints_address: bool  # else the client waits for the servers by itself
    client: Sequence[str]

    @contextmanager
    def running(self, batches: int) -> Iterator[tuple[list[Running], Running]]:
        """Start the servers, then the client."""
        with ExitStack() as stack:
            servers = []
            for words in self.servers:
                servers.append(Running.of(words))
                stack.callback(servers[-1].kill)
            if self.prints_address:
                for server in servers:
                    server.lines.get(timeout=300)
            client = Running.of([word.replace("BATCHES", str(batches)) for word in self.client])
            stack.callback(client.kill)
            yield servers, client


def epoch(way: Way, batches: int) -> Epoch:
    """Read some batches."""
    with way.running(WARM + batches) as (servers, client):
        lines = [json.loads(client.lines.get(timeout=600)) for _ in range(WARM)]
        before = sum(each.cpu() for each in (*servers, client))
        lines += [json.loads(client.lines.get(timeout=600)) for _ in range(batches)]
        cpu = sum(each.cpu() for each in (*servers, client)) - before
    seconds = lines[-1]["at"] - lines[WARM - 1]["at"]
    return Epoch(batches / seconds, cpu / batches, statistics.median(line["bytes"] for line in lines))


def after_a_kill(way: Way, batches: int) -> tuple[int, float]:
    """Kill the second server; return the batches that come after it, and the longest wait in seconds."""
    with way.running(KILL_AFTER + batches) as (servers, client):
        for _ in range(KILL_AFTER):
            client.lines.get(timeout=600)
        servers[1].kill()
        killed = last = time.monotonic()
        found, longest = 0, 0.0
        while found < batches and time.monotonic() < killed + KILL_WAIT_S:
            try:
                line = json.loads(client.lines.get(timeout=1.0))
            except queue.Empty:
                longest = max(longest, time.monotonic() - last)
                continue
            if "batch" in line:
                found, longest, last = found + 1, max(longest, line["at"] - last), line["at"]
        return found, longest


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def khop_whole(folder: Path) -> Way:
    """Two servers with the whole graph."""
    ports = [free_port(), free_port()]
    serve = [sys.executable, "-m", "khop", "serve", str(folder), "--listen"]
    addresses = [f"127.0.0.1:{port}" for port in ports]
    return Way([[*serve, address] for address in addresses], True, _khop_client("", addresses))


def khop_parts(folder: Path, work: Path) -> Way:
    """Two servers with a part each."""
    ports, token = [free_port(), free_port()], work / "between"
    if not token.exists():
        write_token(token, role=Role.SERVER)
    addresses = [f"127.0.0.1:{port}" for port in ports]
    (work / "owners.toml").write_text(
        f'parts = {json.dumps([[a] for a in addresses])}\ntoken_file = "between"\n'
    )
    serve = [sys.executable, "-m", "khop", "serve", str(folder), "--owners", str(work / "owners.toml")]
    serve += ["--token-file", str(token)]
    servers = [[*serve, "--part", str(part), "--listen", address] for part, address in enumerate(addresses)]
    return Way(servers, True, _khop_client(str(token), addresses))


def _khop_client(token: str, addresses: Sequence[str]) -> list[str]:
    settings = [token, "BATCHES", str(BATCH_SIZE), json.dumps(FANOUTS)]
    return [sys.executable, "-c", CLIENT, *settings, *addresses]


def glt(folder: Path) -> Way:
    """GraphLearn-for-PyTorch's two servers with a part each, and its client."""
    port, python = str(free_port()), str(PEERS / "glt" / "bin" / "python")
    servers = [[python, str(SCRIPT), "server", str(folder), "2", str(rank), port] for rank in range(2)]
    settings = ["BATCHES", str(BATCH_SIZE), ",".join(map(str, FANOUTS))]
    return Way(servers, False, [python, str(SCRIPT), "client", str(folder), "2", port, *settings])


def cut(graph: Path) -> tuple[Path, Path]:
    """Return the folders of the two parts, of khop and of GraphLearn-for-PyTorch."""
    parts, of_glt = graph / "parts-2", graph / "glt-2"
    if not parts.exists():
        khop.partition_graph(graph / "graph", parts, 2, method="random")
    if not (of_glt / "seeds-1.pt").exists():
        of_glt.mkdir(exist_ok=True)
        python = PEERS / "glt" / "bin" / "python"
        subprocess.run([str(python), str(SCRIPT), "cut", str(graph), str(of_glt), "2"], check=True)
    return parts, of_glt


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--graph", default="medium", help="graph of benchmarks/graphs.py")
    given = parser.parse_args()
    before = os.getloadavg()[0]
    graph = make(given.graph)
    parts, of_glt = cut(graph)
    ways = {
        "khop, parts": lambda: khop_parts(parts, graph),
        "khop, whole graphs": lambda: khop_whole(graph / "graph"),
        "GLT, parts": lambda: glt(of_glt),
    }
    found: dict[str, list[Epoch]] = {name: [] for name in ways}
    for _ in range(given.rounds):
        for name, way in ways.items():
            found[name].append(epoch(way(), given.batches))
    figures = [Figure("load of the machine before, one minute", before, "1")]
    peer = found["GLT, parts"]
    for name, epochs in found.items():
        rate, cpu = (statistics.median(getattr(e, of) for e in epochs) for of in ("per_second", "cpu"))
        rates, cpus = ([getattr(e, of) for e in epochs] for of in ("per_second", "cpu"))
        of_peer = None if epochs is peer else "GLT"
        ratios = [
            None if of_peer is None else rate / statistics.median(e.per_second for e in peer),
            None if of_peer is None else statistics.median(e.cpu for e in peer) / cpu,
        ]
        notes = {"bytes of a batch": statistics.median(e.size for e in epochs)}
        figures.append(
            Figure(f"batches per second, {name}", rate, "1/s", of_peer, ratios[0], _span(rates), notes)
        )
        figures.append(Figure(f"CPU per batch, {name}", cpu, "s", of_peer, ratios[1], _span(cpus)))
    for name, way in ways.items():
        count, longest = after_a_kill(way(), given.batches)
        notes = {"asked for": given.batches, "longest wait, seconds": longest}
        figures.append(Figure(f"batches after a kill, {name}", count, "1", notes=notes))
    report("servers_glt", [*figures, Figure("load of the machine, five minutes", os.getloadavg()[1], "1")])


def _span(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)


if __name__ == "__main__":
    main()
