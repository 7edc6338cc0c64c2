"""Does training on samples reach what full-graph training is published to reach?

amazon-photo: three seeds on its fixed split, beside Luo et al. 2024 (arXiv 2406.08993). tolokers: its ten splits,
trained on [15, 10] sampled neighbours and on all of them side by side, beside Platonov et al. 2023 (arXiv
2302.11640). The graphs are read from ../shared/data, beside the project; one that is not there is left out, said
so. The recipes below were chosen on validation scores. Test scores are those of the epoch that was best on the
validation split, by exact inference over all neighbours.

    python benchmarks/accuracy.py [--graphs amazon-photo tolokers] [--seeds 3] [--splits 10]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch

import khop
from khop.models.sage import SAGE, Norm
from khop.training.checkpoint import load_checkpoint, restore_model
from khop.training.evaluation import scores
from khop.training.observer import Unwatched

ROOT = Path(__file__).parent.parent
DATA = ROOT.parent / "shared" / "data"
RESULTS = ROOT / "benchmarks" / "results"


@dataclass(frozen=True)
class Recipe:
    """How one graph is trained."""

    fanouts: tuple[int, ...]
    hidden: int
    dropout: float
    norm: Norm
    residual: bool
    batch_size: int
    epochs: int
    learning_rate: float
    weight_decay: float = 0.0
    metric: Literal["accuracy", "roc-auc"] = "accuracy"


@dataclass(frozen=True)
class Outcome:
    """The scores of the epoch that was best on the validation split."""

    val: float
    test: float
    best_epoch: int
    seconds: float


AMAZON_PHOTO = Recipe(
    fanouts=(10, 10, 10),
    hidden=64,
    dropout=0.2,
    norm="layer",
    residual=True,
    batch_size=1024,
    epochs=100,
    learning_rate=1e-3,
)
TOLOKERS = Recipe(
    fanouts=(15, 10),
    hidden=128,
    dropout=0.2,
    norm="layer",
    residual=True,
    batch_size=1024,
    epochs=100,
    learning_rate=3e-3,
    metric="roc-auc",
)


def write_amazon_photo(path: Path) -> Path:
    """7,650 products, edges between those bought together, in both directions."""
    parts = np.load(DATA / "amazon-photo" / "amazon_photo.npz", allow_pickle=True)
    split = np.load(DATA / "amazon-photo" / "amazon-photo_split.npz")
    adjacency = parts["adj_matrix"].item()
    sources, destinations = (adjacency + adjacency.T).nonzero()
    columns = {"x": parts["node_attr"].item().toarray().astype(np.uint8), "y": parts["node_label"]}
    splits = {"train": split["train"], "val": split["valid"], "test": split["test"]}
    return write(path, columns, splits, 8, sources, destinations)


def write_tolokers(path: Path) -> Path:
    """11,758 workers, edges between those who did the same task, in both directions."""
    parts = np.load(DATA / "tolokers" / "tolokers.npz")
    columns = {"x": parts["node_features"], "y": parts["node_labels"]}
    splits = {
        f"{name}.{number}": mask
        for name in ("train", "val", "test")
        for number, mask in enumerate(parts[f"{name}_masks"])
    }
    ends = np.concatenate([parts["edges"], parts["edges"][:, ::-1]])
    return write(path, columns, splits, 2, ends[:, 0], ends[:, 1])


def write(
    path: Path,
    columns: dict[str, np.ndarray],
    splits: dict[str, np.ndarray],
    num_classes: int,
    sources: np.ndarray,
    destinations: np.ndarray,
) -> Path:
    nodes = {"node": khop.NodeTable(None, columns, splits, {"y": num_classes})}
    return khop.write_graph(path, nodes, {("node", "to", "node"): khop.EdgeTable(sources, destinations)})


def train(graph: khop.Graph, recipe: Recipe, seed: int, suffix: str = "") -> Outcome:
    """One run from scratch in a folder that does not outlive it."""
    splits = {name: graph.split(name + suffix)["node"] for name in ("train", "val", "test")}
    task = khop.NodeClassification("node", "y", recipe.metric)
    loader = khop.Loader(
        khop.NeighborSampler(graph, recipe.fanouts),
        splits["train"],
        recipe.batch_size,
        shuffle=True,
        seed=seed,
        columns=["x"],
        seed_columns=["y"],
        threads=1,
    )
    torch.manual_seed(seed)
    model = SAGE.for_graph(
        graph,
        recipe.hidden,
        len(recipe.fanouts),
        dropout=recipe.dropout,
        norm=recipe.norm,
        residual=recipe.residual,
    )

    def score(*names: str) -> dict[str, float]:
        def outputs(nodes: torch.Tensor) -> torch.Tensor:
            return khop.layerwise_inference(model, graph, graph.features, "node", nodes=nodes)

        return scores(task, graph.features, {name: splits[name] for name in names}, outputs)

    settings = khop.TrainerSettings(
        recipe.epochs, recipe.learning_rate, recipe.weight_decay, seed=seed, evaluate_every=2
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = khop.Trainer(
            model, task, loader, lambda: score("val"), settings, Path(folder), Unwatched()
        )
        result = trainer.fit()
        restore_model(model, load_checkpoint(Path(folder) / "checkpoints" / "best"))
    return Outcome(result.best_score, score("test")["test"], result.best_epoch, result.seconds)
