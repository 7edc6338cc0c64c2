"""A short training run in float64 that the tests of stores and samplers from outside share."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn

import khop

NODES, BATCH = 60, 16
SETTINGS = khop.TrainerSettings(epochs=2, learning_rate=0.01, precision="float64")


def train(
    graph: khop.Graph, out: Path, sampler: khop.Sampler | None = None, model: nn.Module | None = None
) -> None:
    """Train on all nodes of a graph of one type, with columns x and y. Collective."""
    if model is None:
        with torch.random.fork_rng():
            torch.manual_seed(7)
            model = khop.models.SAGE.for_graph(graph, hidden=8, layers=2)
    loader = khop.Loader(
        sampler or khop.NeighborSampler(graph, [3, 3]),
        torch.arange(NODES),
        BATCH,
        graph=graph,
        shuffle=True,
        seed=1,
        columns=["x"],
        seed_columns=["y"],
    )
    task = khop.NodeClassification("node", "y")
    khop.Trainer(model, task, loader, lambda: {"val": 0.0}, SETTINGS, out).fit()


def losses_of(folder: Path) -> list[float]:
    """The loss of every step."""
    return [json.loads(line)["loss"] for line in (folder / "steps.jsonl").read_text().splitlines()]
