"""How much sooner do two processes evaluate than one, and how much memory does inference into files take?

Exact evaluation of a GraphSAGE (2 x 256), layer by layer over all neighbors of all nodes; each process is
held to one core and computes with one thread. `khop.evaluate` is timed inside the processes, from the moment
that all are there: the first of a process, which has no memory yet, and the two after it, as a training does
one per epoch. New memory may cost anything: a virtual machine whose host takes back what its processes free
clears 0.5 GB of it in a second, or 12 GB of what the host has left.

Inference is `khop.infer` in one process: the peak of anonymous memory that it adds, beside the rows of one
layer, which memory would have to hold otherwise.

Debian's package graph is beside the products-like one: there an evaluation takes a second, so that what does
not shrink with more processes shows.

usage: python benchmarks/evaluation.py [--graph products] [--rounds 3] [--debian-rounds 5]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from graphs import make
from harness import GRAPHS, Figure, report

import khop
from khop.distributed.processes.group import this_group
from khop.process_tuning import tune_memory

sys.path.insert(0, str(Path(__file__).parent / "contenders"))

from answering import PeakMemory

HIDDEN, LAYERS = 256, 2
EVALUATIONS = 3  # of a process


def opened(folder: str) -> tuple[khop.Graph, torch.nn.Module]:
    """A graph and an untrained model of it, on one core."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[this_group().rank % len(cores)]})
    torch.set_num_threads(1)
    graph = khop.open_graph(folder)
    torch.manual_seed(0)
    return graph, khop.models.SAGE.for_graph(graph, hidden=HIDDEN, layers=LAYERS)


def evaluate(rank: int, device: torch.device, folder: str, out: str) -> None:
    """Time the first evaluation and those after it; rank 0 writes it down."""
    tune_memory()
    graph, model = opened(folder)
    seconds = []
    for _ in range(EVALUATIONS):
        this_group().barrier()
        begun = time.perf_counter()
        score = khop.evaluate(model, graph, split="train")
        seconds.append(time.perf_counter() - begun)
    if rank == 0:
        first, *later = seconds
        Path(out).write_text(json.dumps({"first": first, "later": statistics.median(later), "score": score}))


def infer(rank: int, device: torch.device, folder: str, out: str) -> None:
    """Time one inference into files and watch its memory."""
    graph, model = opened(folder)
    with tempfile.TemporaryDirectory(dir=Path(folder).parent) as scratch, PeakMemory() as peak:
        begun = time.perf_counter()
        khop.infer(model, graph, Path(scratch) / "rows.npy")
        seconds = time.perf_counter() - begun
    row_mib = graph.num_nodes("node") * HIDDEN * 4 / 2**20
    Path(out).write_text(json.dumps({"seconds": seconds, "peak": peak.mib, "rows": row_mib}))


def answer(work: str, procs: int, folder: str) -> dict[str, float]:
    """What new processes write down: this one keeps its cores and its memory."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "answer.json"
        call = f"khop.launch(evaluation.{work}, procs={procs}, arguments={(folder, str(out))})"
        paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
        program = [sys.executable, "-c", f"import evaluation, khop; {call}"]
        subprocess.run(program, env={**os.environ, "PYTHONPATH": paths}, check=True)
        found: dict[str, float] = json.loads(out.read_text())
        return found


def figure(name: str, values: Sequence[float], unit: str) -> Figure:
    """The median, and the least and the most."""
    return Figure(name, round(statistics.median(values), 3), unit, spread=(min(values), max(values)))


def evaluations(name: str, folder: str, rounds: int) -> list[Figure]:
    """Rounds of one process and of two, in turns."""
    seconds: dict[str, dict[int, list[float]]] = {"first": {1: [], 2: []}, "later": {1: [], 2: []}}
    scores = set()
    for number in range(rounds):
        for procs in (1, 2):
            found = answer("evaluate", procs, folder)
            scores.add(found["score"])
            for which, of_procs in seconds.items():
                of_procs[procs].append(round(found[which], 3))
            told = f"first {found['first']:.3f} s, later {found['later']:.3f} s"
            print(f"{name}, round {number}, {procs} processes: {told}", file=sys.stderr)
    assert len(scores) == 1, scores
    figures = []
    for which, what in (("later", "evaluation"), ("first", "first evaluation")):
        one, two = seconds[which].values()
        ratios = [round(b / a, 3) for a, b in zip(one, two, strict=True)]
        figures += [
            figure(f"{name}, {what}, 1 process x 1 thread", one, "s"),
            figure(f"{name}, {what}, 2 processes x 1 thread", two, "s"),
            figure(f"{name}, {what}, 2 processes over 1", ratios, "x"),
        ]
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--graph", default="products")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--debian-rounds", type=int, default=5)
    arguments = parser.parse_args()
    folder = str(make(arguments.graph) / "graph")
    debian = str(khop.builtin_folder("debian", GRAPHS))
    figures = evaluations("debian", debian, arguments.debian_rounds)
    figures += evaluations(arguments.graph, folder, arguments.rounds)
    inference = answer("infer", 1, folder)
    report(
        "evaluation",
        [
            *figures,
            Figure("inference into files, 1 process x 1 thread", round(inference["seconds"], 2), "s"),
            Figure("the same, peak of anonymous memory", round(inference["peak"], 1), "MiB"),
            Figure("rows of one layer, which lie in a file", round(inference["rows"], 1), "MiB"),
        ],
    )


if __name__ == "__main__":
    main()
