"""A run over clusters, from the graph folder to the scores."""

from __future__ import annotations

from pathlib import Path

import torch

import khop
from support.small_folders import write_learnable_graph


def test_training_on_clusters_learns(tmp_path: Path) -> None:
    graph = khop.open_graph(khop.cluster_graph(write_learnable_graph(tmp_path / "a"), tmp_path / "b", 12))
    torch.manual_seed(1)
    model = khop.models.SAGE.for_graph(graph, hidden=16, layers=2)
    sampler = khop.ClusterSampler(graph, khop.clusters_of(graph), layers=2, per_group=2)
    loader = khop.Loader(
        sampler, graph.split("train"), 2, shuffle=True, columns=["x"], seed_columns=["category"]
    )
    before = khop.evaluate(model, graph, split="val", loader=loader)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    task = khop.NodeClassification.of(graph.schema)
    for _ in range(15):
        for batch in loader:
            optimizer.zero_grad()
            batch.global_mean(task.losses(model(batch), batch)).backward()
            optimizer.step()
    assert khop.evaluate(model, graph, split="val", loader=loader) > before + 0.3
