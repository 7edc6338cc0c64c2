"""DGL's side of the benchmarks (2.1.0, torch 2.1.2): layered expansion, its own NeighborSampler and
DataLoader."""

from __future__ import annotations

import sys
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import dgl
import dgl.nn
import numpy as np
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parent))
from answering import Answer, answer_tasks, mean_ms, median_ms, peak_rss_mib


@cache
def array(folder: str, name: str) -> torch.Tensor:
    return torch.from_numpy(np.load(Path(folder) / f"{name}.npy"))


@cache
def graph_of(folder: str) -> Any:
    indptr, indices = array(folder, "indptr"), array(folder, "indices")
    graph = dgl.graph(("csc", (indptr, indices, torch.empty(0, dtype=torch.int64))))
    return graph.formats("csc")


def sampling(settings: dict[str, Any]) -> Answer:
    if settings.get("expansion") == "subgraph":
        return {"skipped": "DGL samples in the layered expansion only"}
    torch.set_num_threads(settings.get("threads", 1))
    graph, train = graph_of(settings["graph"]), array(settings["graph"], "train")
    # DGL lists fanouts from the input layer.
    sampler = dgl.dataloading.NeighborSampler(settings["fanouts"][::-1])

    def one(step: int) -> Any:
        generator = torch.Generator().manual_seed(step)
        return sampler.sample(
            graph, train[torch.randperm(train.numel(), generator=generator)[: settings["batch_size"]]]
        )

    value, (inputs, _, blocks) = median_ms(one, settings["batches"])
    edges = sum(block.num_edges() for block in blocks)
    return {"value": value, "unit": "ms/batch", "nodes": inputs.numel(), "edges": edges}


def batches_of(settings: dict[str, Any]) -> Any:
    folder = settings["graph"]
    x, y = array(folder, "x"), array(folder, "y")
    sampler = dgl.dataloading.NeighborSampler(settings["fanouts"][::-1])
    loader = dgl.dataloading.DataLoader(
        graph_of(folder),
        array(folder, "train"),
        sampler,
        batch_size=settings["batch_size"],
        shuffle=True,
        num_workers=0,
    )
    for inputs, seeds, blocks in loader:
        yield torch.index_select(x, 0, inputs), y[seeds], blocks


def loader(settings: dict[str, Any]) -> Answer:
    torch.set_num_threads(2)
    value = mean_ms(batches_of(settings), settings["batches"])
    return {"value": value, "unit": "ms/batch", "peak_rss_mib": peak_rss_mib()}


def links(settings: dict[str, Any]) -> Answer:
    """ms per batch of links. The links and their reverses are excluded, by the other direction's edge ids."""
    torch.set_num_threads(2)
    folder = settings["graph"]
    users, items = array(folder, "users").long(), array(folder, "items").long()
    graph = dgl.heterograph(
        {("user", "buys", "item"): (users, items), ("item", "bought_by", "user"): (items, users)}
    )
    neighbors = dgl.dataloading.NeighborSampler(settings["fanouts"][::-1])
    sampler = dgl.dataloading.as_edge_prediction_sampler(
        neighbors,
        exclude="reverse_types" if settings.get("exclude") else None,
        reverse_etypes={"buys": "bought_by", "bought_by": "buys"},
        negative_sampler=dgl.dataloading.negative_sampler.Uniform(1),
    )
    loader = dgl.dataloading.DataLoader(
        graph,
        {("user", "buys", "item"): array(folder, "seeds")},
        sampler,
        batch_size=settings["batch_size"],
        shuffle=True,
        num_workers=0,
    )
    x = {t: array(folder, f"x_{t}") for t in ("user", "item")}
    counts = []

    def batches() -> Any:
        for inputs, _, _, blocks in loader:
            counts.append(sum(ids.numel() for ids in inputs.values()))
            yield {t: torch.index_select(x[t], 0, ids) for t, ids in inputs.items()}, blocks

    value = mean_ms(batches(), settings["batches"])
    return {"value": value, "unit": "ms/batch", "nodes": counts[-1], "peak_rss_mib": peak_rss_mib()}


class SAGE(torch.nn.Module):
    def __init__(self, width: int, hidden: int, classes: int) -> None:
        super().__init__()
        sizes = [width, hidden, hidden, classes]
        pairs = pairwise(sizes)
        self.layers = torch.nn.ModuleList(dgl.nn.SAGEConv(a, b, "mean") for a, b in pairs)

    def forward(self, blocks: Any, x: torch.Tensor) -> torch.Tensor:
        for number, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            x = layer(block, x)
            if number < 2:
                x = F.relu(x)
        return x


def train_step(settings: dict[str, Any]) -> Answer:
    torch.set_num_threads(2)
    torch.manual_seed(0)
    folder = settings["graph"]
    model = SAGE(array(folder, "x").shape[1], 256, int(array(folder, "y").max()) + 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def steps() -> Any:
        for x, y, blocks in batches_of(settings):
            loss = F.cross_entropy(model(blocks, x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss.item()

    return {
        "value": mean_ms(steps(), settings["batches"]),
        "unit": "ms/batch",
        "peak_rss_mib": peak_rss_mib(),
    }


if __name__ == "__main__":
    answer_tasks({task.__name__: task for task in (sampling, loader, links, train_step)})
