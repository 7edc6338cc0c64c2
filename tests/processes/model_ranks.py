"""Runs of every model, on some ranks. Started by test_models_on_ranks.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

import khop
from khop.models import GAT, GCN, GIN, HGT, RGAT, RGCN, SAGE, LightGCN
from khop.models.encoder import ModelSizes

Make = Callable[[ModelSizes], nn.Module]
ITEM = "item"
MODELS: Mapping[str, tuple[Make, khop.Rule]] = {
    "sage": (lambda sizes: SAGE(sizes, 8), khop.Uniform()),
    "sage, labor": (lambda sizes: SAGE(sizes, 8), khop.Labor(kappa=3)),
    "rgcn, bases": (lambda sizes: RGCN(sizes, 8, bases=2), khop.Uniform()),
    "gat": (lambda sizes: GAT(sizes, 8, heads=2), khop.Uniform()),
    "gatv2": (lambda sizes: GAT(sizes, 8, heads=2, attention="gatv2"), khop.Uniform()),
    "gin": (lambda sizes: GIN(sizes, 8), khop.Sum()),
    "gcn": (lambda sizes: GCN(sizes, 8, norm="layer"), khop.SymmetricSum()),
    "rgat": (lambda sizes: RGAT(sizes, 8, 2, 0.0, "linear", heads=2), khop.Uniform()),
    "hgt": (lambda sizes: HGT(sizes, 8, heads=2), khop.Uniform()),
    "lightgcn": (lambda sizes: LightGCN(sizes, 8, 2), khop.SymmetricSum()),
    "unknown row": (lambda sizes: SAGE(replace(sizes, unknown=0.3), 8), khop.Uniform()),
    "unknown row, sparse": (
        lambda sizes: SAGE(replace(sizes, unknown=0.3, embedding_update="sparse"), 8),
        khop.Uniform(),
    ),
}


def trained(rank: int, device: torch.device, folder: str, out: str, epochs: int) -> None:
    """Train each model up to an epoch; a run that exists goes on."""
    torch.set_num_threads(1)
    graph = khop.open_graph(folder)
    for name, (make, rule) in MODELS.items():
        torch.manual_seed(3)
        sizes = ModelSizes.of(graph, ITEM, embedding=5, embedded_types="all")
        model = make(sizes)
        loader = khop.Loader(
            khop.NeighborSampler(graph, [4, 2], rule=rule),
            {ITEM: graph.split("train")[ITEM]},
            33,
            shuffle=True,
            columns=["x"],
            seed_columns=["kind"],
        )
        settings = khop.TrainerSettings(epochs, 0.05, precision="float64")
        task = khop.NodeClassification(ITEM, "kind")

        def evaluate(model: nn.Module = model, loader: khop.Loader = loader) -> Mapping[str, float]:
            return {"val": khop.evaluate(model, graph, split="val", loader=loader)}

        trainer = khop.Trainer(model, task, loader, evaluate, settings, Path(out) / name)
        if (Path(out) / name / "checkpoints" / "last").exists():
            trainer.resume()
        trainer.fit()
