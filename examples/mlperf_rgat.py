"""MLPerf's graph benchmark: R-GAT on IGB, to an accuracy of 0.72. docs/examples.md has the import."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch

import khop

FANOUTS = [15, 10, 5]


class Mllog(khop.Unwatched):
    """Prints the events of a run as lines of mlcommons/logging, on rank 0."""

    def __init__(self, target: float, *, is_first: bool) -> None:
        self.target, self.is_first, self.accuracy, self.done = target, is_first, 0.0, 0.0
        self._epochs, self._steps, self._is_evaluating = 0, 1, False

    def log(self, key: str, value: object = None, kind: str = "POINT_IN_TIME", **metadata: object) -> None:
        given = {"file": Path(__file__).name, "lineno": sys._getframe(1).f_lineno, **metadata}
        line = {"namespace": "", "time_ms": int(time.time() * 1e3), "event_type": kind, "key": key}
        if self.is_first:
            print(f":::MLLOG {json.dumps({**line, 'value': value, 'metadata': given})}", flush=True)

    def started(self, epochs: int, steps: int) -> None:
        self._epochs, self._steps = epochs, steps
        self.log("epoch_start", kind="INTERVAL_START", epoch_num=0)

    def stepped(self, epoch: int, step: int, loss: float) -> None:
        self.done = round(epoch + (step + 1) / self._steps, 4)

    def evaluating(self, done: int, total: int) -> None:
        self._is_evaluating = True
        self.log("eval_start", kind="INTERVAL_START", epoch_num=self.done)

    def evaluated(self, record: dict[str, object]) -> None:
        self._is_evaluating, self.accuracy = False, float(str(record["val_accuracy"]))
        self.log("eval_accuracy", self.accuracy, epoch_num=self.done)
        self.log("eval_stop", kind="INTERVAL_END", epoch_num=self.done)

    def epoch_ended(self, record: dict[str, object]) -> None:
        if self._is_evaluating:
            self.evaluated(record)
        ended = int(str(record["epoch"])) + 1
        self.log("epoch_stop", kind="INTERVAL_END", epoch_num=ended - 1)
        if self.accuracy < self.target and ended < self._epochs:
            self.log("epoch_start", kind="INTERVAL_START", epoch_num=ended)


def train(rank: int, device: torch.device, run: argparse.Namespace) -> None:
    observer = Mllog(run.target, is_first=rank == 0)
    observer.log("cache_clear", value=True)
    observer.log("init_start", kind="INTERVAL_START")
    graph = khop.open_graph(run.graph)
    seeds, task = graph.split("train"), khop.NodeClassification.of(graph.schema)
    reads = {"columns": ["x"], "seed_columns": [task.label], "device": device, "seed": run.seed}
    sampler = khop.NeighborSampler(graph, FANOUTS)
    loader = khop.Loader(sampler, seeds, run.batch_size, shuffle=True, **reads)
    torch.manual_seed(run.seed)
    model = khop.models.RGAT.for_graph(graph, hidden=run.hidden, layers=3, heads=4, dropout=0.2)
    given = {"target": ("accuracy", run.target), "seed": run.seed, "device": str(device)}
    settings = khop.TrainerSettings(run.epochs, run.learning_rate, evaluate_every=run.every, **given)

    def evaluate() -> dict[str, float]:
        observer.evaluating(0, 1)
        return {"val": khop.evaluate(model, graph, split="val", fanouts=FANOUTS, loader=loader)}

    facts = {"benchmark": "gnn", "org": "khop", "division": "open", "status": "research", "platform": "khop"}
    facts = {f"submission_{name}": value for name, value in facts.items()}
    facts |= {"global_batch_size": run.batch_size, "gradient_accumulation_steps": 1, "seed": run.seed}
    for key, value in {**facts, "opt_name": "adam", "opt_base_learning_rate": run.learning_rate}.items():
        observer.log(key, value)
    observer.log("init_stop", kind="INTERVAL_END")
    observer.log("run_start", kind="INTERVAL_START")
    for name, nodes in (("train", seeds), ("eval", graph.split("val"))):
        observer.log(f"{name}_samples", sum(ids.numel() for ids in nodes.values()))
    khop.Trainer(model, task, loader, evaluate, settings, run.out, observer=observer).fit()
    status = "success" if observer.accuracy >= run.target else "aborted"
    observer.log("run_stop", kind="INTERVAL_END", status=status, epoch_num=observer.done)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--procs", type=int, help="processes; default: one per GPU")
    defaults = {"graph": Path("igbh-split"), "out": Path("mlperf-rgat"), "epochs": 2, "batch_size": 1024}
    defaults |= {"hidden": 512, "learning_rate": 1e-3, "every": 0.05, "target": 0.72, "seed": 42}
    for name, value in defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    khop.launch(train, procs=(run := parser.parse_args()).procs, arguments=(run,))


if __name__ == "__main__":
    main()
