"""What does Debian's package graph tell of a package's section, beyond the package's own words?

Test accuracy on the fixed split of the largest class, of an MLP on the package's own features, and of
GraphSAGE as `khop train debian` and `khop train debian-typed` train it. The MLP is the former without
neighbors, as wide, deep and normalized, and trained for 16 epochs. All are taken at the epoch that is best on
the validation split.

    python benchmarks/debian_baselines.py [--seeds 3]
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
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from harness import Figure, report
from torch import Tensor, nn

from khop.data.builtin import builtin_folder
from khop.data.debian.graph import BUCKETS, SECTIONS
from khop.graph.folder import open_folder

Config = Mapping[str, Any]
RUNS = ("debian", "debian-typed")
MLP_TRAINING: dict[str, Any] = {"epochs": 16, "batch_size": 1024, "learning_rate": 3e-3}


@dataclass(frozen=True)
class Outcome:
    """One trained model."""

    val: float
    test: float
    seconds: float


@dataclass(frozen=True)
class Packages:
    """What an MLP sees of the graph."""

    x: Tensor  # float32 (packages, BUCKETS)
    section: Tensor  # int64 (packages)
    splits: Mapping[str, Tensor]

    @classmethod
    def of(cls, folder: Path) -> Packages:
        graph = open_folder(folder)
        columns = graph.columns()["package"]
        splits = {name: graph.split(name)["package"] for name in graph.split_names}
        return cls(columns["x"].float(), columns["section"], splits)

    def accuracy(self, predicted: Tensor, split: str) -> float:
        ids = self.splits[split]
        return (predicted[ids] == self.section[ids]).float().mean().item()


def majority(packages: Packages) -> float:
    """Test accuracy of saying the largest class of the training split, always."""
    largest = packages.section[packages.splits["train"]].bincount().argmax()
    return packages.accuracy(largest.expand_as(packages.section), "test")


def trained(run: str, seed: int, cache: Path, out: Path) -> Outcome:
    """`khop train RUN`, as a user runs it."""
    command = [
        sys.executable,
        "-m",
        "khop",
        "train",
        run,
        "--seed",
        str(seed),
        "--out",
        str(out),
        "--json",
    ]
    done = subprocess.run(
        command, env={**os.environ, "KHOP_CACHE": str(cache)}, stdout=subprocess.PIPE, text=True, check=True
    )
    result = json.loads(done.stdout.splitlines()[-1])
    return Outcome(result["val_accuracy"], result["test_accuracy"], result["seconds"])


def mlp(seed: int, packages: Packages, config: Config) -> Outcome:
    """The model of `config` without its neighbors."""
    torch.manual_seed(seed)
    model, training = _layers(config["model"]), MLP_TRAINING
    optimizer = torch.optim.Adam(model.parameters(), lr=training["learning_rate"])
    train = packages.splits["train"]
    best, begun = Outcome(0.0, 0.0, 0.0), time.perf_counter()
    for _ in range(training["epochs"]):
        model.train()
        for ids in train[torch.randperm(len(train))].split(training["batch_size"]):
            loss = F.cross_entropy(model(packages.x[ids]), packages.section[ids])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            predicted = model(packages.x).argmax(dim=1)
        val, test = (packages.accuracy(predicted, split) for split in ("val", "test"))
        if val > best.val:
            best = Outcome(val, test, time.perf_counter() - begun)
    return best


def _layers(model: Config) -> nn.Module:
    width, layers = BUCKETS, []
    for _ in range(model["layers"]):
        norm = nn.LayerNorm(model["hidden"]) if model["norm"] == "layer" else nn.Identity()
        layers += [nn.Linear(width, model["hidden"]), norm, nn.ReLU(), nn.Dropout(model["dropout"])]
        width = model["hidden"]
    return nn.Sequential(*layers, nn.Linear(width, len(SECTIONS)))


def settings_of(config: Config) -> Config:
    """What decides a run's score."""
    return {table: config[table] for table in ("sampler", "model", "training")}


def figure(name: str, outcomes: Sequence[Outcome], settings: Config) -> Figure:
    """Mean test accuracy over the seeds, from the lowest to the highest."""
    tests = [outcome.test for outcome in outcomes]
    notes = {
        "stdev": round(statistics.stdev(tests), 4) if len(tests) > 1 else None,
        "runs": [asdict(outcome) for outcome in outcomes],
        **settings,
    }
    spread = (round(min(tests), 4), round(max(tests), 4))
    unit = f"test accuracy, mean of {len(tests)}"
    return Figure(name, round(statistics.mean(tests), 4), unit, spread=spread, notes=notes)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    seeds = range(parser.parse_args().seeds)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        packages = Packages.of(builtin_folder("debian", folder / "cache"))
        sage = {
            run: [trained(run, seed, folder / "cache", folder / f"{run}-{seed}") for seed in seeds]
            for run in RUNS
        }
        configs = {run: tomllib.loads((folder / f"{run}-0" / "config.toml").read_text()) for run in RUNS}
        config = configs[RUNS[0]]
        torch.set_num_threads(config["compute_threads"])
        own = [mlp(seed, packages, config) for seed in seeds]
    report(
        "debian_baselines",
        [
            Figure("majority class", round(majority(packages), 4), "test accuracy"),
            figure("MLP on own features", own, {}),
            *(figure(f"GraphSAGE, khop train {run}", sage[run], settings_of(configs[run])) for run in RUNS),
        ],
    )


if __name__ == "__main__":
    main()
