"""What do several processes gain, and what do exactness, checkpoints and going on cost?

* scaling: seeds per second of `khop.Trainer` (SAGE mean, 3 x 256, [15,10,5], float32), one core and one
  thread for each process: 1,024 seeds per process (weak scaling), a fixed global batch of 1,024, and, as the
  most that the machine gives, two processes that train for themselves and exchange nothing.
* checkpoints: what one costs the training, and what that is at one per minute.
* resume: seconds from starting `khop train --resume` to its next batch.
* losses: the largest relative difference of the loss between 1 and 2, 3, 4 processes, over a whole
  `khop train debian` of 16 epochs in batches of 1,024, with dropout 0.

usage: python benchmarks/processes.py [scaling] [checkpoints] [resume] [losses]   (default: all)
       [--graph products] [--rounds 3] [--batches 12] [--precisions float64 float32]
What is not run keeps its last figures.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import graphs
import torch
from harness import RESULTS, ROOT, Figure, quartiles, report

import khop
from khop.process_tuning import tune_memory
from khop.training.step_clock import Unwatched

SEEDS = 1024
WARM_UP = 3  # steps
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
RATE_NOTES = {"threads per process": 1, "model": "SAGE 3 x 256, [15,10,5]"}


class Stepping(Unwatched):
    """Notes when each update was done."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def stepped(self, epoch: int, step: int, loss: float) -> None:
        self.at.append(time.perf_counter())


def trainer_of(graph: khop.Graph, batch_size: int, out: Path, keeping: khop.CheckpointPolicy) -> khop.Trainer:
    torch.manual_seed(0)
    loader = khop.Loader(
        khop.NeighborSampler(graph, [15, 10, 5]),
        seeds=graph.split("train"),
        batch_size=batch_size,
        shuffle=True,
        columns=["x"],
        seed_columns=["y"],
        threads=1,
    )
    settings = khop.TrainerSettings(epochs=1, checkpoints=keeping)
    model = khop.models.SAGE.for_graph(graph, hidden=256, layers=3)
    task = khop.NodeClassification("node", "y")
    return khop.Trainer(model, task, loader, lambda: {"val": 0.0}, settings, out, Stepping())


def rate(trainer: khop.Trainer, batch_size: int, batches: int) -> float:
    """Seeds per second over all ranks, in steady state."""
    assert isinstance(trainer.observer, Stepping)
    trainer.rehearse(WARM_UP + batches)
    at = trainer.observer.at
    return batch_size * batches / (at[-1] - at[WARM_UP - 1])


def trains(rank: int, device: torch.device, folder: str, batch_size: int, batches: int, out: str) -> None:
    """Train as a rank, or alone, on one core of the machine's."""
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    torch.set_num_threads(1)
    tune_memory()
    trainer = trainer_of(
        khop.open_graph(folder), batch_size, Path(out) / f"run-{rank}", khop.CheckpointPolicy()
    )
    Path(out, f"{rank}.json").write_text(json.dumps(rate(trainer, batch_size, batches)))


def together(folder: str, procs: int, batch_size: int, batches: int) -> float:
    """Seeds per second of `procs` ranks."""
    with tempfile.TemporaryDirectory() as out:
        if procs == 1:
            return apart(folder, 1, batch_size, batches)
        khop.launch(trains, procs=procs, arguments=(folder, batch_size, batches, out), device="cpu")
        return float(json.loads(Path(out, "0.json").read_text()))


def apart(folder: str, procs: int, batch_size: int, batches: int) -> float:
    """Seeds per second of processes that know nothing of one another, added up."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as out:
        arguments = (torch.device("cpu"), folder, batch_size, batches, out)
        processes = [context.Process(target=trains, args=(rank, *arguments)) for rank in range(procs)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        return sum(float(json.loads(Path(out, f"{rank}.json").read_text())) for rank in range(procs))


def scaling(arguments: argparse.Namespace) -> list[Figure]:
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    folder, batches = str(graphs.make(arguments.graph) / "graph"), arguments.batches
    runs: dict[str, Callable[[], float]] = {
        "1 process, 1,024 seeds": lambda: together(folder, 1, SEEDS, batches),
        "2 processes, 1,024 seeds each": lambda: together(folder, 2, 2 * SEEDS, batches),
        "2 processes, 1,024 seeds in all": lambda: together(folder, 2, SEEDS, batches),
        "2 processes that exchange nothing": lambda: apart(folder, 2, SEEDS, batches),
    }
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(arguments.rounds):
        for name, run in runs.items():
            rates[name].append(run())
            print(f"round {number} {name:<36} {rates[name][-1]:8.0f} seeds/s", file=sys.stderr, flush=True)
    alone, weak, fixed, bound = (statistics.median(of_run) for of_run in rates.values())
    return [
        *(of_rounds(name, found, "seeds/s") for name, found in rates.items()),
        Figure("weak scaling, 2 processes over 1", round(weak / alone, 3), "x", notes=RATE_NOTES),
        Figure("fixed global batch, 2 processes over 1", round(fixed / alone, 3), "x", notes=RATE_NOTES),
        Figure("weak scaling over what the machine gives", round(weak / bound, 3), "x", notes=RATE_NOTES),
    ]


def checkpoints(arguments: argparse.Namespace) -> list[Figure]:
    """Rounds of as many updates without checkpoints, with one each, without, ..."""
    graph = khop.open_graph(graphs.make(arguments.graph) / "graph")
    tune_memory()
    seconds: dict[str, list[float]] = {"without": [], "with": []}
    for _ in range(arguments.rounds):
        for how, steps in (("without", None), ("with", 1)):
            with tempfile.TemporaryDirectory(dir=ROOT) as out:  # on a disk, as a run folder is
                keeping = khop.CheckpointPolicy(steps, None)
                trainer = trainer_of(graph, SEEDS, Path(out), keeping)
                seconds[how].append(SEEDS / rate(trainer, SEEDS, arguments.batches))
                print(f"{how:<8} {seconds[how][-1]:.4f} s per step", file=sys.stderr, flush=True)
    cost = max(b - a for a, b in zip(*seconds.values(), strict=True))  # of the dearest round
    return [
        of_rounds("a step without a checkpoint", seconds["without"], "s"),
        of_rounds("a step with a checkpoint", seconds["with"], "s"),
        Figure("checkpoints at one per minute", round(100 * max(cost, 0.0) / 60, 4), "% of the time"),
    ]


# Ends a run when its loader has its first batch, and says what had passed by then.
FIRST_BATCH = """
import os, sys, time
started = time.monotonic()
import torch
imported = time.monotonic()
from khop.api.loader import Loader
from khop.cli.start import run
receive = Loader._receive
def received(self, made, position):
    receive(self, made, position)
    print(time.monotonic() - float(sys.argv[1]), imported - started, flush=True)
    os._exit(0)
Loader._receive = received
run(["train", "--resume", sys.argv[2]])
"""


def resume(arguments: argparse.Namespace) -> list[Figure]:
    folder = graphs.make(arguments.graph) / "graph"
    given = ["--graph", str(folder), "--fanouts", "15,10,5", "--val-split", "train", "--test-split", "train"]
    beyond, whole = [], []
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch, "run")
        training = subprocess.Popen(
            [sys.executable, "-m", "khop", "train", *given, "--checkpoint-steps", "2", "--out", str(run)],
            env=ENVIRONMENT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while not (run / "checkpoints" / "last-1").exists():
            if training.poll() is not None:
                raise RuntimeError("the run to be resumed has failed")
            time.sleep(0.1)
        training.send_signal(signal.SIGTERM)
        training.wait()
        for _ in range(arguments.rounds):
            command = [sys.executable, "-c", FIRST_BATCH, str(time.monotonic()), str(run)]
            done = subprocess.run(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, check=True)
            seconds, importing = done.stdout.splitlines()[-1].split()
            whole.append(float(seconds))
            beyond.append(float(seconds) - float(importing))
    return [
        of_rounds("resume, from start to the next batch", whole, "s"),
        of_rounds("resume, beyond importing torch", beyond, "s"),
    ]


def losses(arguments: argparse.Namespace) -> list[Figure]:
    """Of steps and of epochs: of few seeds a float32 loss may be anything, the course may not."""
    figures = []
    with tempfile.TemporaryDirectory() as scratch:
        for precision in arguments.precisions:
            runs = [Path(scratch, f"{precision}-{procs}") for procs in (1, 2, 3, 4)]
            for procs, run in enumerate(runs, start=1):
                train_debian(run, precision, procs)
            for log, what in (("steps", "a step"), ("metrics", "an epoch")):
                alone, *others = (numbers_in(run / f"{log}.jsonl", "loss") for run in runs)
                for procs, other in enumerate(others, start=2):
                    largest = max(abs(a - b) / abs(a) for a, b in zip(alone, other, strict=True))
                    name = (
                        f"debian, {precision}, {procs} processes beside 1: loss of {what}, largest difference"
                    )
                    figures.append(Figure(name, float(f"{largest:.2g}"), "of it"))
            for procs, run in enumerate(runs, start=1):
                score = numbers_in(run / "metrics.jsonl", "test_accuracy")[-1]
                figures.append(
                    Figure(f"debian, {precision}, {procs} processes", round(score, 4), "test accuracy")
                )
    return figures


def train_debian(out: Path, precision: str, procs: int) -> None:
    given = ["--precision", precision, "--dropout", "0", "--compute-threads", "1", "--procs", str(procs)]
    long = ["--epochs", "16", "--batch-size", "1024", "--learning-rate", "0.003", "--schedule", "constant"]
    command = [sys.executable, "-m", "khop", "train", "debian", *long, *given, "--out", str(out)]
    started = time.monotonic()
    subprocess.run(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, check=True)
    print(f"{precision}, {procs} processes: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


def numbers_in(log: Path, name: str) -> list[float]:
    return [float(json.loads(line)[name]) for line in log.read_text().splitlines()]


def of_rounds(name: str, values: Sequence[float], unit: str) -> Figure:
    return Figure(name, round(statistics.median(values), 4), unit, spread=quartiles(values))


PARTS = {part.__name__: part for part in (scaling, checkpoints, resume, losses)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[])
    parser.add_argument("--graph", default="products", choices=sorted(graphs.SPECS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--precisions", nargs="*", default=["float64", "float32"])
    arguments = parser.parse_args()
    file = RESULTS / "processes.json"
    kept = json.loads(file.read_text())["figures"] if file.exists() else []
    figures = {figure["figure"]: Figure(**figure) for figure in kept}
    for part in arguments.parts or PARTS:
        figures |= {figure.figure: figure for figure in PARTS[part](arguments)}
    report("processes", list(figures.values()))


if __name__ == "__main__":
    main()
