"""Runs of every sampler of groups, on some ranks. Started by test_groups_on_ranks.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

import khop
from khop.models import SAGE
from khop.models.encoder import ModelSizes

ITEM = "item"
SAMPLERS: Mapping[str, Callable[[khop.Graph], khop.Sampler]] = {
    "saint-node": lambda graph: khop.SaintSampler(graph, khop.SaintNodes(20), layers=2, coverage=5),
    "saint-edge": lambda graph: khop.SaintSampler(graph, khop.SaintEdges(10), layers=2, coverage=5),
    "saint-walk": lambda graph: khop.SaintSampler(graph, khop.SaintWalks(8, 2), layers=2, coverage=5),
    "cluster": lambda graph: khop.ClusterSampler(graph, khop.clusters_of(graph), layers=2, per_group=2),
    "shadow": lambda graph: khop.ShadowSampler(graph, [3, 2], layers=3, per_group=1),
    "shadow, merged": lambda graph: khop.ShadowSampler(graph, [3, 2], layers=2, per_group=7),
}
GROUPS_PER_STEP = {"shadow": 25, "cluster": 2}


def trained(
    rank: int,
    device: torch.device,
    folder: str,
    placement: str,
    out: str,
    epochs: int,
    names: tuple[str, ...] = tuple(SAMPLERS),
    micro_batches: int = 1,
) -> None:
    """Train with some samplers up to an epoch; a run that exists goes on."""
    torch.set_num_threads(1)
    graph = khop.open_graph(folder, placement=placement)
    for name in names:
        torch.manual_seed(3)
        sampler = SAMPLERS[name](graph)
        assert sampler.num_layers is not None
        model = SAGE(ModelSizes.of(graph, ITEM, outputs=4), 8, layers=sampler.num_layers)
        loader = khop.Loader(
            sampler,
            {ITEM: graph.split("train")[ITEM]},
            GROUPS_PER_STEP.get(name, 3),
            shuffle=True,
            columns=["x"],
            seed_columns=["category"],
            micro_batches=micro_batches,
        )
        settings = khop.TrainerSettings(epochs, 0.05, precision="float64")
        task = khop.NodeClassification(ITEM, "category")
        trainer = khop.Trainer(model, task, loader, lambda: {"val": 0.0}, settings, Path(out) / name)
        if (Path(out) / name / "checkpoints" / "last").exists():
            trainer.resume()
        trainer.fit()
