"""What do ranks exchange that hold parts of a graph, and what does it cost them?

Two processes train (`khop.Trainer`, SAGE mean, 3 x 256, [15,10,5], 1,024 seeds each, one core and one thread
for each) on a folder of two parts, by each placement, beside two that share the whole graph. Counted are
collectives per batch, and what a batch receives in rows, headers included, over the least that has to come:
each row of another rank once, as it is stored. Ids are listed apart.

usage: python benchmarks/worker.py [--graph medium] [--rounds 3] [--batches 12] [--placements features all]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import graphs
import torch
from harness import Figure, report

import khop
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

    def timed(self, step: TimedStep) -> None:
        self.traffic.append(step.batch.traffic)


def trains(rank: int, device: torch.device, folder: str, placement: str, batches: int, out: str) -> None:
    """Train as a rank on a core of its own."""
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    torch.set_num_threads(1)
    khop.tune_memory()
    graph = khop.open_graph(folder, placement=placement)
    trainer = trainer_of(graph, RANKS * SEEDS, Path(out) / f"run-{rank}", khop.Keeping())
    observer = trainer.observer = Counting()
    rated = rate(trainer, RANKS * SEEDS, batches)
    measured = {"rate": rated, "traffic": [dict(counts) for counts in observer.traffic[WARM_UP:]]}
    Path(out, f"{rank}.json").write_text(json.dumps(measured))


def measured(folder: Path, placement: str, batches: int) -> tuple[float, list[dict[str, float]]]:
    """Seeds per second over both ranks, and what each batch of each has exchanged."""
    with tempfile.TemporaryDirectory() as out:
        khop.launch(trains, procs=RANKS, arguments=(str(folder), placement, batches, out), device="cpu")
        of_ranks = [json.loads(Path(out, f"{rank}.json").read_text()) for rank in range(RANKS)]
    return of_ranks[0]["rate"], [counts for of_rank in of_ranks for counts in of_rank["traffic"]]


def traffic_figures(placement: str, traffic: Sequence[Mapping[str, float]]) -> list[Figure]:
    """Means over all batches of both ranks."""
    mean = {name: statistics.mean(counts[name] for counts in traffic) for name in traffic[0]}
    least, rows = mean["asked_bytes"], mean["row_bytes_received"]
    share = round(mean["remote_rows"] / mean["wanted_rows"], 3)
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--graph", default="medium", choices=sorted(graphs.SPECS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--placements", nargs="+", default=["features", "all"], choices=["features", "all"])
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    whole = graphs.make(arguments.graph) / "graph"
    parts = graphs.parts(whole, RANKS)
    rates: dict[str, list[float]] = {name: [] for name in (WHOLE, *arguments.placements)}
    traffic: dict[str, list[dict[str, float]]] = {}
    for number in range(arguments.rounds):
        for placement in rates:
            folder = whole if placement == WHOLE else parts
            found, traffic[placement] = measured(folder, placement, arguments.batches)
            rates[placement].append(found)
            print(f"round {number} {placement:<8} {found:8.0f} seeds/s", file=sys.stderr, flush=True)
    figures = [of_rounds(f"{name}: 2 processes", found, "seeds/s") for name, found in rates.items()]
    for placement in arguments.placements:
        ratios = [found / beside for found, beside in zip(rates[placement], rates[WHOLE], strict=True)]
        notes = {"wanted": f">= {LEAST[placement]}", "graph": arguments.graph}
        over = f"{placement}: throughput over 2 processes on the whole graph"
        figures.append(Figure(over, round(statistics.median(ratios), 3), "x", notes=notes))
        figures += traffic_figures(placement, traffic[placement])
    report("worker", figures)


if __name__ == "__main__":
    main()
