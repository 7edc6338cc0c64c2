"""What do ranks exchange that hold parts of a graph, and what does it cost them?

Two processes train (`khop.Trainer`, SAGE mean, 3 x 256, [15,10,5], 1,024 seeds each, one core and one thread
for each) on a folder of two parts, by each placement, beside two that share the whole graph. The same two
processes do all of it, a few batches of one placement after those of another, and throughput is compared
within a round, so that a slow minute of the machine hits all alike; a first round is not counted. Beside it
stands the processor time of a step, over all threads of a process, which says the same on a busy machine.
Counted are collectives per batch, and what a batch receives in rows, headers included, over the least that
has to come: each row of another rank once, as it is stored. Ids are listed apart.

usage: python benchmarks/worker.py [--graph medium] [--rounds 5] [--batches 12] [--placements features all]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import graphs
import torch
from harness import Figure, report

import khop
from khop.process_tuning import tune_memory
from khop.training.step_clock import TimedStep
from processes import SEEDS, WARM_UP, Stepping, of_rounds, rate, trainer_of

RANKS = 2
WHOLE = "whole"
LEAST = {"features": 0.8, "all": 0.5}  # of the throughput on a whole graph


class Counting(Stepping):
    """Notes what every batch has exchanged, too."""

    def __init__(self) -> None:
        super().__init__()
        self.traffic: list[Mapping[str, float]] = []
        self.cpu: list[float] = []  # seconds of this process when each update was done

    def stepped(self, epoch: int, step: int, loss: float) -> None:
        super().stepped(epoch, step, loss)
        self.cpu.append(time.process_time())

    def timed(self, step: TimedStep) -> None:
        self.traffic.append(step.batch.traffic)


def trains(
    rank: int, device: torch.device, folders: Mapping[str, str], rounds: int, batches: int, out: str
) -> None:
    """Train as a rank on a core of its own, on the whole graph and by each placement in turn."""
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    torch.set_num_threads(1)
    tune_memory()
    trainers: dict[str, khop.Trainer] = {}
    for name, folder in folders.items():
        graph = khop.open_graph(folder, placement=name)
        trainers[name] = trainer_of(
            graph, RANKS * SEEDS, Path(out) / f"run-{name}-{rank}", khop.CheckpointPolicy()
        )
    rates: dict[str, list[float]] = {name: [] for name in folders}
    cpu: dict[str, list[float]] = {name: [] for name in folders}
    traffic: dict[str, list[Mapping[str, float]]] = {}
    for number in range(rounds + 1):
        for name, trainer in trainers.items():
            observer = trainer.observer = Counting()
            rates[name].append(rate(trainer, RANKS * SEEDS, batches))
            cpu[name].append(1000 * (observer.cpu[-1] - observer.cpu[WARM_UP - 1]) / batches)
            traffic[name] = [dict(counts) for counts in observer.traffic[WARM_UP:]]
            if rank == 0:
                line = f"round {number} {name:<8} {rates[name][-1]:8.0f} seeds/s {cpu[name][-1]:6.0f} ms"
                print(line, file=sys.stderr, flush=True)
    for by_round in (*rates.values(), *cpu.values()):
        del by_round[0]
    Path(out, f"{rank}.json").write_text(json.dumps({"rates": rates, "cpu": cpu, "traffic": traffic}))


def measured(folders: Mapping[str, str], rounds: int, batches: int) -> list[dict[str, Any]]:
    """Of each rank, by placement: its rates, by round, its processor time, and what its batches exchanged."""
    with tempfile.TemporaryDirectory() as out:
        khop.launch(trains, procs=RANKS, arguments=(folders, rounds, batches, out), device="cpu")
        return [json.loads(Path(out, f"{rank}.json").read_text()) for rank in range(RANKS)]


def traffic_figures(placement: str, traffic: Sequence[Mapping[str, float]]) -> list[Figure]:
    """Means over all batches of both ranks."""
    mean = {name: statistics.mean(counts[name] for counts in traffic) for name in traffic[0]}
    least, rows = mean["requested_bytes"], mean["row_bytes_received"]
    share = round(mean["remote_rows"] / mean["needed_rows"], 3)
    return [
        Figure(f"{placement}: collectives per batch", mean["collectives"], ""),
        Figure(
            f"{placement}: row bytes per batch over the least",
            round(rows / least, 4),
            "x",
            notes={"MB of rows": round(rows / 1e6, 2), "share of rows that lie elsewhere": share},
        ),
        Figure(f"{placement}: id bytes per batch", round(mean["id_bytes_sent"] / 1e6, 4), "MB sent"),
    ]


def ratios(values: Sequence[float], beside: Sequence[float]) -> list[float]:
    return [value / other for value, other in zip(values, beside, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--graph", default="medium", choices=sorted(graphs.SPECS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--placements", nargs="+", default=["features", "all"], choices=["features", "all"])
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    whole = graphs.make(arguments.graph) / "graph"
    parts = graphs.parts(whole, RANKS)
    folders = {WHOLE: str(whole), **dict.fromkeys(arguments.placements, str(parts))}
    ranks = measured(folders, arguments.rounds, arguments.batches)
    rates = ranks[0]["rates"]
    cpu = {
        name: [statistics.mean(of) for of in zip(*(r["cpu"][name] for r in ranks), strict=True)]
        for name in rates
    }
    figures = [of_rounds(f"{name}: 2 processes", found, "seeds/s") for name, found in rates.items()]
    figures += [of_rounds(f"{name}: processor time of a step", found, "ms") for name, found in cpu.items()]
    for placement in arguments.placements:
        over = f"{placement}: throughput over 2 processes on the whole graph"
        notes = {"wanted": f">= {LEAST[placement]}", "graph": arguments.graph}
        figures.append(replace(of_rounds(over, ratios(rates[placement], rates[WHOLE]), "x"), notes=notes))
        over = f"{placement}: processor time of the whole graph over its own"
        figures.append(of_rounds(over, ratios(cpu[WHOLE], cpu[placement]), "x"))
        figures += traffic_figures(
            placement, [counts for rank in ranks for counts in rank["traffic"][placement]]
        )
    report("worker", figures)


if __name__ == "__main__":
    main()
