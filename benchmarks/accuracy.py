"""Does training on samples reach what full-graph training is published to reach?

amazon-photo: three seeds on its fixed split, beside Luo et al. 2024 (arXiv 2406.08993). tolokers: its ten
splits, trained on [15, 10] sampled neighbors and on all of them side by side, beside Platonov et al. 2023
(arXiv 2302.11640). The graphs are read from ../shared/data, beside the project; one that is not there is left
out, and said so. The recipes were chosen on validation scores alone. A test score is that of the epoch which
was best on the validation split, by exact inference over all neighbors.

    python benchmarks/accuracy.py [--graphs amazon-photo tolokers] [--seeds 3] [--splits 10] [--threads 2]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from harness import ROOT, Figure, report

import khop
from khop.inference.evaluation import scores
from khop.models.layer import Norm, Residual
from khop.models.sage import SAGE
from khop.training.checkpoint import load_checkpoint, restore_model
from khop.training.steps import seeded

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Recipe:
    """How one graph is trained."""

    fanouts: tuple[int, ...]
    hidden: int
    dropout: float
    batch_size: int
    epochs: int
    learning_rate: float
    norm: Norm = "layer"
    residual: Residual = "add"
    weight_decay: float = 0.0
    metric: Literal["accuracy", "roc-auc"] = "accuracy"


@dataclass(frozen=True)
class Outcome:
    """The scores of the epoch that was best on the validation split."""

    val: float
    test: float
    best_epoch: int
    seconds: float


AMAZON_PHOTO = Recipe((10, 10, 10), hidden=64, dropout=0.5, batch_size=512, epochs=100, learning_rate=3e-3)
TOLOKERS = Recipe(
    (15, 10), hidden=128, dropout=0.2, batch_size=512, epochs=100, learning_rate=3e-3, metric="roc-auc"
)
PUBLISHED = {"amazon-photo": 0.9678, "tolokers": 0.8243}  # GraphSAGE, trained on the full graph


def write_amazon_photo(data: Path, path: Path) -> Path:
    """7,650 products, edges between those bought together, in both directions."""
    parts = np.load(data / "amazon_photo.npz", allow_pickle=True)
    split = np.load(data / "amazon-photo_split.npz")
    adjacency = parts["adj_matrix"].item()
    columns = {"x": parts["node_attr"].item().toarray().astype(np.uint8), "y": parts["node_label"]}
    splits = {"train": split["train"], "val": split["valid"], "test": split["test"]}
    return write(path, khop.NodeTable(None, columns, splits, {"y": 8}), *(adjacency + adjacency.T).nonzero())


def write_tolokers(data: Path, path: Path) -> Path:
    """11,758 workers, edges between those who did the same task, in both directions."""
    parts = np.load(data / "tolokers.npz")
    columns = {"x": parts["node_features"], "y": parts["node_labels"]}
    splits = {
        f"{name}.{number}": mask
        for name in ("train", "val", "test")
        for number, mask in enumerate(parts[f"{name}_masks"])
    }
    ends = np.concatenate([parts["edges"], parts["edges"][:, ::-1]])
    return write(path, khop.NodeTable(None, columns, splits, {"y": 2}), ends[:, 0], ends[:, 1])


def write(path: Path, nodes: khop.NodeTable, sources: Array, destinations: Array) -> Path:
    edges = khop.EdgeTable(sources, destinations)
    return khop.write_graph(path, {"node": nodes}, {("node", "to", "node"): edges})


def train(graph: khop.Graph, recipe: Recipe, seed: int, suffix: str = "") -> Outcome:
    """One run from scratch, on the splits whose names end in `suffix`; its folder does not outlive it."""
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
    )
    model = seeded(seed, lambda: model_of(graph, recipe))

    def score(split: str) -> dict[str, float]:
        return scores(
            task,
            graph.features,
            {split: splits[split]},
            lambda nodes: khop.layerwise_inference(model, graph, graph.features, "node", nodes=nodes),
        )

    settings = khop.TrainerSettings(
        recipe.epochs, recipe.learning_rate, recipe.weight_decay, evaluate_every=2, seed=seed
    )
    with tempfile.TemporaryDirectory() as folder:
        result = khop.Trainer(model, task, loader, lambda: score("val"), settings, Path(folder)).fit()
        restore_model(model, load_checkpoint(Path(folder) / "checkpoints" / "best"))
    return Outcome(result.best_score, score("test")["test"], result.best_epoch, round(result.seconds, 1))


def model_of(graph: khop.Graph, recipe: Recipe) -> SAGE:
    options = {"dropout": recipe.dropout, "norm": recipe.norm, "residual": recipe.residual}
    return SAGE.for_graph(graph, recipe.hidden, len(recipe.fanouts), **options)  # type: ignore[arg-type]


def figure(name: str, graph: str, recipe: Recipe, outcomes: Sequence[Outcome]) -> Figure:
    tests = [outcome.test for outcome in outcomes]
    mean, peer = statistics.mean(tests), PUBLISHED[graph]
    notes = {
        "stdev": round(statistics.stdev(tests), 4) if len(tests) > 1 else None,
        "recipe": asdict(recipe),
        "runs": [asdict(outcome) for outcome in outcomes],
    }
    words = f"published, full graph: {peer}"
    unit = f"test {recipe.metric}, mean of {len(tests)}"
    spread = (round(min(tests), 4), round(max(tests), 4))
    return Figure(f"{graph}, {name}", round(mean, 4), unit, words, round(mean / peer, 4), spread, notes)


def several(count: int, run: Callable[[int], Outcome]) -> list[Outcome]:
    outcomes = []
    for number in range(count):
        outcomes.append(run(number))
        print(f"  {number}: {outcomes[-1]}", file=sys.stderr, flush=True)
    return outcomes


def amazon_photo(data: Path, folder: Path, arguments: argparse.Namespace) -> list[Figure]:
    graph = khop.open_graph(write_amazon_photo(data, folder / "amazon-photo"))
    outcomes = several(arguments.seeds, lambda seed: train(graph, AMAZON_PHOTO, seed))
    return [figure(f"sampled {list(AMAZON_PHOTO.fanouts)}", "amazon-photo", AMAZON_PHOTO, outcomes)]


def tolokers(data: Path, folder: Path, arguments: argparse.Namespace) -> list[Figure]:
    graph = khop.open_graph(write_tolokers(data, folder / "tolokers"))
    found = []
    for name, fanouts in (("sampled [15, 10]", (15, 10)), ("all neighbors", (-1, -1))):
        print(f"tolokers, {name}", file=sys.stderr)
        recipe = replace(TOLOKERS, fanouts=fanouts)
        outcomes = several(
            arguments.splits, lambda split, recipe=recipe: train(graph, recipe, split, f".{split}")
        )
        found.append(figure(name, "tolokers", recipe, outcomes))
    return found


BENCHMARKS = {"amazon-photo": amazon_photo, "tolokers": tolokers}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--graphs", nargs="+", choices=BENCHMARKS, default=list(BENCHMARKS))
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument(
        "--threads", type=int, default=2, help="compute threads: the figures hold for this number"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    figures = []
    for name in arguments.graphs:
        data = arguments.data / name
        if not data.is_dir():
            print(f"{name}: left out, {data} is not there", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as folder:
            figures += BENCHMARKS[name](data, Path(folder), arguments)
    if figures:
        report("accuracy", figures)


if __name__ == "__main__":
    main()
