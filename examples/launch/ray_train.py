"""Train in the workers of Ray Train: python ray_train.py --graph FOLDER --workers 4. Needs ray[train]."""

from __future__ import annotations

import argparse

import ray.train
import torch
import torch.nn.functional as F
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer
from torch.nn.parallel import DistributedDataParallel

import khop


def train(rank: int, device: torch.device, folder: str, epochs: int) -> None:
    """Train as one rank; Ray has started the others."""
    graph = khop.open_graph(folder)
    node_type, label = graph.schema.label_column()
    loader = khop.Loader(
        khop.NeighborSampler(graph, fanouts=[10, 10]), graph.split("train"), batch_size=1024, shuffle=True,
        columns=["x"], seed_columns={node_type: [label]}, device=device,
    )  # fmt: skip
    model = DistributedDataParallel(khop.models.SAGE.for_graph(graph, hidden=64, layers=2).to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(epochs):
        for batch in loader.epoch(epoch):
            losses = F.cross_entropy(model(batch), batch.seed_column(label, node_type), reduction="none")
            optimizer.zero_grad()
            batch.global_mean(losses).backward()
            optimizer.step()
        ray.train.report({"val": khop.evaluate(model, graph, split="val"), "epoch": epoch})


def worker(given: dict[str, object]) -> None:
    """Run in each worker of Ray."""
    khop.launch(train, arguments=(given["graph"], given["epochs"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graph", required=True, help="graph folder that all workers can read")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    given = parser.parse_args()
    scaling = ScalingConfig(num_workers=given.workers, use_gpu=torch.cuda.is_available())
    result = TorchTrainer(worker, train_loop_config=vars(given), scaling_config=scaling).fit()
    print(result.metrics)


if __name__ == "__main__":
    main()
