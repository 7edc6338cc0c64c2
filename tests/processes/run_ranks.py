"""Runs that ranks train in the tests: one for each task and loss of khop."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import khop
from khop.distributed.processes.group import this_group
from khop.run.build import prepare
from khop.run.read import RawRun, with_options
from khop.run.start import start_from
from khop.training.step_clock import Observer, Unwatched

STOPPED = (1, 1)  # epoch and step after which a run is stopped and resumed
STOPPED_LATER = {
    "plateau": (4, 1),  # after a first reduction, and one evaluation before the second
    "within epochs": (1, 0),  # after an update, before its evaluation
}
COURSES = ("whole", "parts", "resumed")
LINKS = {"kind": "link-prediction", "target": "item like item"}
RUNS: dict[str, dict[str, dict[str, Any]]] = {
    "regression": {"task": {"kind": "node-regression", "label": "price"}},
    "absolute error": {"task": {"kind": "node-regression", "label": "size", "loss": "mae", "metric": "r2"}},
    "multi-label": {"task": {"kind": "multi-label", "label": "tags"}},
    "multi-label, micro-batches": {
        "task": {"kind": "multi-label", "label": "tags"},
        "training": {"micro_batches": 4},
    },
    **{
        kind: {
            "task": {"kind": "multi-label", "label": "tags"},
            "optimizer": {"kind": kind, "clip_norm": 0.1},
        }
        for kind in ("adamw", "nadam", "radam", "sgd", "rmsprop", "adagrad")
    },
    "focal": {
        "task": {"label": "kind", "loss": "focal", "class_weights": "balanced", "label_smoothing": 0.1}
    },
    "classes of edges": {
        "task": {"kind": "edge-classification", "label": "stars", "class_weights": "balanced"},
    },
    "numbers of edges": {"task": {"kind": "edge-regression", "label": "weight", "metric": "mae"}},
    "gat over a column of edges": {
        "task": {"label": "kind"},
        "model": {"kind": "gat", "heads": 2, "edge_column": "weight"},
    },
    "gatv2": {"task": {"label": "kind"}, "model": {"kind": "gat", "heads": 2, "attention": "gatv2"}},
    "hgt": {"task": {"label": "kind"}, "model": {"kind": "hgt", "heads": 2}},
    "gin by sums": {
        "task": {"label": "kind"},
        "model": {"kind": "gin"},
        "sampler": {"rule": {"kind": "sum"}},
    },
    "rgcn by means of relations": {
        "task": {"label": "kind"},
        "model": {"kind": "rgcn", "bases": 2, "relation": "way"},
        "sampler": {"rule": {"kind": "relation-mean", "column": "way", "inner": "labor"}},
    },
    "rgcn by means of draws": {
        "task": {"label": "kind"},
        "model": {"kind": "rgcn", "relation": "way"},
    },
    "gcn over labor": {
        "task": {"label": "kind"},
        "model": {"kind": "gcn"},
        "sampler": {"rule": {"kind": "symmetric-sum", "inner": "labor", "kappa": 2}},
    },
    "labor": {"task": {"label": "kind"}, "sampler": {"rule": {"kind": "labor"}}},
    "top-k": {
        "task": {"label": "kind"},
        "sampler": {"rule": {"kind": "top-k", "column": "weight"}},
    },
    "weighted sums": {
        "task": {"label": "kind"},
        "model": {"kind": "gin"},
        "sampler": {"rule": {"kind": "sum", "column": "weight", "replacement": True}},
    },
    "clipped, sharded embeddings": {
        "task": {"label": "kind"},
        "model": {"embedding": 4, "embedded_types": "all", "embedding_update": "sharded"},
        "optimizer": {"kind": "sgd", "clip_norm": 0.3},
        "training": {"learning_rate": 0.1},
    },
    "plateau": {
        "task": {"label": "kind"},
        "optimizer": {"kind": "sgd"},
        "training": {
            "learning_rate": 1e-4,  # no prediction changes, so no evaluation improves
            "epochs": 6,
            "schedule": "plateau",
            "plateau_factor": 0.5,
            "plateau_patience": 2,
        },
    },
    "within epochs": {
        "task": {"label": "kind"},
        "model": {"embedding": 4, "embedded_types": "all", "embedding_update": "sharded"},
        "optimizer": {"kind": "sgd"},
        "training": {"learning_rate": 0.1, "max_steps": 8, "schedule": "plateau", "plateau_patience": 1},
        "evaluation": {"every_steps": 2},
    },
    "lightgcn, bpr": {
        "task": LINKS,
        "links": {"loss": {"kind": "bpr"}, "negatives_per_positive": 3},
        "model": {"kind": "lightgcn"},
        "sampler": {"rule": {"kind": "symmetric-sum"}},
    },
    "propagated columns": {
        "task": {"label": "kind"},
        "model": {"kind": "mlp", "concat": "x_1,x_2"},
        "sampler": {"fanouts": [0, 0]},
    },
    "mlp": {"task": LINKS, "links": {"decoder": "mlp", "ranking": True}},
    "spot target": {"task": LINKS, "links": {"spot_target": 5}},
    "hard and shared": {
        "task": LINKS,
        "links": {"hard_negatives": 2, "hard_every": 2, "shared_negatives": 2, "negatives_group": 9},
    },
    "infonce": {
        "task": LINKS,
        "links": {"loss": {"kind": "infonce"}, "negatives_group": 20, "negatives_per_positive": 4},
    },
    "infonce, micro-batches": {
        "task": LINKS,
        "links": {"loss": {"kind": "infonce"}, "negatives_group": 20, "negatives_per_positive": 4},
        "training": {"micro_batches": 3},
    },
    "margin": {
        "task": LINKS | {"metric": "ndcg@10"},
        "links": {"loss": {"kind": "margin"}, "negatives": "degree"},
    },
}


@dataclass
class Stopping(Unwatched):
    """An observer that stops the run after one update, as Ctrl-C does."""

    at: tuple[int, int]

    def stepped(self, epoch: int, step: int, loss: float) -> None:
        if (epoch, step) == self.at:
            raise KeyboardInterrupt


def raw_run(graph: str, tables: dict[str, dict[str, Any]]) -> RawRun:
    """A run of two layers in float64 with these tables, so that losses can be compared to 1e-9."""
    values: dict[str, Any] = {
        "graph": graph,
        "precision": "float64",
        "model": {"hidden": 8, "dropout": 0.0},
        "sampler": {"fanouts": [3, 2]},
        "parts": {"placement": "all"},
        "training": {"epochs": 3, "batch_size": 45, "learning_rate": 0.01},
    }
    for name, table in tables.items():
        values[name] = values.get(name, {}) | table
    if values["model"].get("kind") == "lightgcn":
        del values["model"]["dropout"]  # it has none
    return RawRun(values, "run.toml")


def trained(raw: RawRun, out: Path, observer: Observer, start: str = "new") -> None:
    """Train a run as this rank; "resume" continues it."""
    trainer = prepare(raw, out).trainer(out, observer)
    if start == "resume":
        trainer.resume()
    trainer.fit()


def squared(batch: khop.Batch) -> khop.Batch:
    """A transform: the column, and its squares times a number of the step."""
    x = batch["x"].double()
    return replace(batch, columns={"item": {"x": x, "squares": (batch.step + 1) * x.square()}})


def transforms(rank: int, device: torch.device, graphs: dict[str, str], out: str) -> None:
    """Write the sums of a transformed column over the seeds of each step, and over those of a list."""
    for name, folder in graphs.items():
        graph = khop.open_graph(folder, placement="all")
        sampler = khop.NeighborSampler(graph, [3, 2])
        seeds = graph.split("train")
        loader = khop.Loader(sampler, seeds, 45, shuffle=True, columns=["x"], transform=squared)
        sums = [float(batch["squares"][batch.seed_index].sum()) for batch in loader.epoch(1)]
        alone = loader(seeds["item"][rank :: this_group().world_size])  # each rank its own
        sums.append(float(alone["squares"][alone.seed_index].sum()))
        Path(out, f"{name}-{this_group().world_size}-{rank}.json").write_text(json.dumps(sums))


STARTED: dict[str, dict[str, Any]] = {
    "task": {"label": "kind"},
    "model": {"embedding": 4, "embedded_types": "all", "embedding_update": "sharded"},
}


def starts(rank: int, device: torch.device, graphs: dict[str, str], first: str, out: str) -> None:
    """Train a run on each graph that starts from the weights and the optimizer of another run."""
    torch.set_num_threads(1)
    for name, graph in graphs.items():
        options = {"start_from": first, "start_optimizer": True, "training.epochs": 2}
        run = prepare(with_options(raw_run(graph, STARTED), options), Path(out))
        trainer = run.trainer(Path(out, f"{this_group().world_size}", name), Unwatched())
        start_from(run, trainer)
        trainer.fit()


def trains(
    rank: int,
    device: torch.device,
    graph: str,
    parts: str,
    out: str,
    names: tuple[str, ...] = tuple(RUNS),
    courses: tuple[str, ...] = COURSES,
) -> None:
    """Train runs on the whole graph, on its parts, and on the whole graph with a stop."""
    torch.set_num_threads(1)
    for name in names:
        tables = RUNS[name]
        home = Path(out, f"{this_group().world_size}", name)
        if "whole" in courses:
            trained(raw_run(graph, tables), home / "whole", Unwatched())
        if "parts" in courses:
            trained(raw_run(parts, tables), home / "parts", Unwatched())
        if "resumed" not in courses:
            continue
        try:
            trained(raw_run(graph, tables), home / "resumed", Stopping(STOPPED_LATER.get(name, STOPPED)))
        except KeyboardInterrupt:
            trained(raw_run(graph, tables), home / "resumed", Unwatched(), "resume")
