"""What do checks of drawn times cost? Nanoseconds per edge, this khop beside another one, in turns.

Both draw the same batches from the same random graph, one thread each: disjoint trees, layered [15,10,5],
1024 seeds, rows in the order of time. OTHER is the Python of a checkout of another revision with khop
installed; `ratio` is this khop's time per edge over the other's, the median over pairs of batches. Without
OTHER, this khop is compared with itself, which shows the noise.

usage: python benchmarks/time_checks.py [OTHER] [--nodes 2000000] [--edges 40000000] [--batches 60]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from harness import Figure, report

import khop
from khop.draw import DrawKey, Purpose
from khop.graph.store import CscGraph, csc_graph_from_edges
from khop.kernels.memory import pooled
from khop.schema import ColumnSpec

try:
    from khop.graph.rule import Rule
    from khop.sampling.rules.temporal import Temporal, TemporalStrategy

    LATEST_EDGES = Temporal("time", TemporalStrategy.LATEST)
except ImportError:  # the other revision, before rules had a package
    from khop.draw import Keep, Rule, Temporal  # type: ignore[attr-defined,no-redef]

    LATEST_EDGES = Temporal("time", Keep.LATEST)

EDGE = ("node", "to", "node")
FANOUTS, BATCH_SIZE, LATEST, WARMING = [15, 10, 5], 1024, 1 << 40, 5
RULES: dict[str, Rule] = {
    "temporal": Temporal("time"),
    "temporal, window": Temporal("time", window=(LATEST // 4, 0)),
    "temporal, latest": LATEST_EDGES,
}


def pooled_copy(column: torch.Tensor) -> torch.Tensor:
    """In huge pages, as the arrays that khop makes are."""
    return pooled(tuple(column.shape), column.dtype).copy_(column)


def random_graph(nodes: int, edges: int, of_sources: bool) -> CscGraph:
    """Skewed degrees; times of edges, or of their sources."""
    generator = torch.Generator().manual_seed(0)
    names = torch.randperm(nodes, generator=generator).int()
    ends = [names[(torch.rand(edges, generator=generator) ** 2 * nodes).long()] for _ in range(2)]
    count = nodes if of_sources else edges
    columns = {
        ("node" if of_sources else EDGE): {"time": torch.randint(LATEST, (count,), generator=generator)}
    }
    graph = csc_graph_from_edges(
        {"node": nodes}, {EDGE: (ends[0], ends[1])}, 2, columns=columns, sort_by="time"
    )
    columns = {
        type_: {name: pooled_copy(column) for name, column in of_type.items()}
        for type_, of_type in graph.columns.items()
    }
    graph = replace(graph, columns=columns)
    specs = {next(iter(columns)): {"time": ColumnSpec("int64", ())}}
    return replace(graph, schema=replace(graph.schema, columns=specs))


def worker(nodes: int, edges: int) -> None:
    """Answer every line, a rule and a step, with the nanoseconds per edge of that batch."""
    torch.set_num_threads(1)
    graphs = {kind: random_graph(nodes, edges, kind == "sources") for kind in ("edges", "sources")}
    print("ready", flush=True)
    for line in sys.stdin:
        kind, name, step = json.loads(line)
        generator = torch.Generator().manual_seed(step)
        seeds = khop.Seeds(
            {"node": torch.randint(nodes, (BATCH_SIZE,), generator=generator)},
            {"node": torch.arange(BATCH_SIZE)},
            {"node": torch.randint(LATEST, (BATCH_SIZE,), generator=generator)},
        )
        sampler = khop.NeighborSampler(graphs[kind], FANOUTS, rule=RULES[name])
        started = time.perf_counter()
        sample = sampler.sample(seeds, DrawKey.of(0, Purpose.HOP, 0, step))
        seconds = time.perf_counter() - started
        drawn = sum(a.indices.numel() for block in sample.blocks for a in block.adjacencies.values())
        print(json.dumps(1e9 * seconds / drawn), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("other", nargs="?", default=sys.executable)
    parser.add_argument("--nodes", type=int, default=2_000_000)
    parser.add_argument("--edges", type=int, default=40_000_000)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        worker(given.nodes, given.edges)
        return
    command = [str(Path(__file__).absolute()), "--worker", f"--nodes={given.nodes}", f"--edges={given.edges}"]
    workers = [
        subprocess.Popen(
            [python, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=os.sep
        )
        for python in (sys.executable, given.other)
    ]
    for each in workers:
        assert each.stdout is not None
        assert each.stdout.readline().strip() == "ready"

    def measured(number: int, *question: object) -> float:
        pipe_in, pipe_out = workers[number].stdin, workers[number].stdout
        assert pipe_in is not None
        assert pipe_out is not None
        print(json.dumps(question), file=pipe_in, flush=True)
        return float(json.loads(pipe_out.readline()))

    figures = []
    for kind in ("edges", "sources"):
        for name in RULES:
            pairs = []
            for step in range(given.batches + WARMING):
                order = (0, 1) if step % 2 else (1, 0)
                found = {number: measured(number, kind, name, step) for number in order}
                pairs.append((found[0], found[1]))
            ours, theirs = zip(*pairs[WARMING:], strict=True)
            low, middle, high = statistics.quantiles([a / b for a, b in pairs[WARMING:]], n=4)
            figures.append(
                Figure(
                    figure=f"{name}, times of {kind}, time per edge",
                    value=round(statistics.median(ours), 2),
                    unit="ns/edge",
                    peer="the other khop",
                    ratio=round(middle, 3),
                    spread=(round(low, 3), round(high, 3)),
                    notes={
                        "other": round(statistics.median(theirs), 2),
                        "least": round(min(ours) / min(theirs), 3),
                    },
                )
            )
    for each in workers:
        assert each.stdin is not None
        each.stdin.close()
        each.wait()
    report("time_checks", figures)


if __name__ == "__main__":
    main()
