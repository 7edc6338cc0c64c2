"""What do several batches under way at once gain where messages take 5 ms?

Two processes on two hosts (network namespaces of this machine) load epochs of a folder of two parts and
train nothing: with one lane, each batch begun once the one before is there, and with more. Every packet of
the link between them arrives 5 ms later, as `tests/network/link_delay.py` has it; beside that a link without
delay. Batches per second, in rounds of A, B, A, B, ... Needs root, /dev/net/tun, iproute2.

usage: python benchmarks/lanes.py [--rounds 5] [--batches 40] [--lanes 1 2 4 8] [--seeds 64 256]
       [--fanouts 10 5] [--placements features all] [--delays 5 0] [--graph small]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import graphs
import torch
from harness import Figure, report
from two_hosts import RANKS, ranks, two_hosts

import khop
from khop.process_tuning import tune_memory
from processes import of_rounds

AHEAD = 4  # batches, as a loader has it unless it is told otherwise
AT_LEAST = 1.8  # times one batch at a time, on the link with delay


@dataclass(frozen=True)
class Case:
    """One way to load batches."""

    placement: str
    seeds: int  # of each process and step
    lanes: int

    @property
    def beside(self) -> Case:
        """The same batches one at a time."""
        return Case(self.placement, self.seeds, 1)

    def __str__(self) -> str:
        return f"{self.placement}, {self.seeds} seeds each, {self.lanes} lane{'s' * (self.lanes > 1)}"


@dataclass(frozen=True)
class Task:
    """What both ranks do on one link."""

    folder: str
    cases: list[Case]
    fanouts: list[int]
    rounds: int
    batches: int

    @classmethod
    def of_text(cls, text: str) -> Task:
        """As `json.dumps(asdict(task))` has it."""
        fields = json.loads(text)
        return cls(**{**fields, "cases": [Case(**case) for case in fields["cases"]]})


def load(rank: int, device: torch.device, task: Task, out: str) -> None:
    """Batches per second of every case and round, on a core of the machine's."""
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    torch.set_num_threads(1)
    tune_memory()
    loaders = [loader_of(task, case) for case in task.cases]
    rates: list[list[float]] = [[] for _ in loaders]
    for epoch in range(1 + task.rounds):  # the first one warms up
        for loader, of_case in zip(loaders, rates, strict=True):
            of_case.append(rate(loader, epoch))
    Path(out).write_text(json.dumps([of_case[1:] for of_case in rates]))


def loader_of(task: Task, case: Case) -> khop.Loader:
    graph = khop.open_graph(task.folder, placement=case.placement, lanes=case.lanes)
    train, count = graph.split("train")["node"], RANKS * case.seeds * task.batches
    return khop.Loader(
        khop.NeighborSampler(graph, task.fanouts),
        train.repeat(-(-count // train.numel()))[:count],
        batch_size=RANKS * case.seeds,
        shuffle=True,
        columns=["x"],
        seed_columns=["y"],
        threads=1,
        prefetch=1 if case.lanes == 1 else max(AHEAD, case.lanes),  # 1: begun once the one before is taken
    )


def rate(loader: khop.Loader, epoch: int) -> float:
    """Batches per second of an epoch, its beginning and end included."""
    begun = time.perf_counter()
    for _ in loader.epoch(epoch):
        continue
    return len(loader) / (time.perf_counter() - begun)


def figures_of(delay_ms: float, cases: list[Case], rates: dict[Case, list[float]]) -> Iterator[Figure]:
    """The rate of each case, and its ratio to one batch at a time, the median over rounds."""
    for case in cases:
        name = f"{delay_ms:g} ms, {case}"
        yield of_rounds(name, rates[case], "batches/s")
        if case != case.beside:
            ratios = [many / one for many, one in zip(rates[case], rates[case.beside], strict=True)]
            notes = {"wanted": f">= {AT_LEAST}"} if delay_ms else {}
            figure = of_rounds(f"{name}, over one batch at a time", ratios, "x")
            yield Figure(figure.figure, round(median(ratios), 3), "x", spread=figure.spread, notes=notes)


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--graph", default="small", choices=sorted(graphs.SPECS))
    found.add_argument("--rounds", type=int, default=5)
    found.add_argument("--batches", type=int, default=40)
    found.add_argument("--lanes", type=int, nargs="+", default=[1, 2, 4, 8])
    found.add_argument("--seeds", type=int, nargs="+", default=[64, 256])
    found.add_argument("--fanouts", type=int, nargs="+", default=[10, 5])
    found.add_argument("--placements", nargs="+", default=["features", "all"], choices=["features", "all"])
    found.add_argument("--delays", type=float, nargs="+", default=[5.0, 0.0], help="ms")
    found.add_argument("--task", help=argparse.SUPPRESS)  # of a rank
    found.add_argument("out", nargs="?", help=argparse.SUPPRESS)
    return found


def main() -> None:
    arguments = parser().parse_args()
    if arguments.task:
        khop.launch(load, arguments=(Task.of_text(arguments.task), arguments.out), device="cpu")
        return
    whole = graphs.make(arguments.graph) / "graph"
    parts = graphs.parts(whole, RANKS)
    counts = sorted({1, *arguments.lanes})
    cases = [Case(p, s, n) for p in arguments.placements for s in arguments.seeds for n in counts]
    task = Task(str(parts), cases, arguments.fanouts, arguments.rounds, arguments.batches)
    figures: list[Figure] = []
    for delay_ms in arguments.delays:
        with two_hosts(delay_s=delay_ms / 1000) as hosts:
            of_ranks = ranks(hosts, "lanes.py", "--task", json.dumps(asdict(task)))
        rates = dict(zip(cases, of_ranks[0], strict=True))
        figures += figures_of(delay_ms, cases, rates)
    for figure in figures:
        print(f"{figure.figure:<70} {figure.value:8.2f} {figure.unit}", file=sys.stderr)
    report("lanes", figures)


if __name__ == "__main__":
    main()
