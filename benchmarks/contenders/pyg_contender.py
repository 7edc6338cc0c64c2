"""PyG's side of the benchmarks, on torch-sparse (pyg-lib is not on PyPI): subgraph expansion."""

from __future__ import annotations

import sys
import time
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parent))
from answering import Answer, PeakMemory, answer_tasks, mean_ms, median_ms, peak_rss_mib

warnings.filterwarnings("ignore", message=".*pyg-lib.*")
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import LinkNeighborLoader, NeighborLoader
from torch_geometric.nn import GraphSAGE


@cache
def array(folder: str, name: str) -> torch.Tensor:
    return torch.from_numpy(np.load(Path(folder) / f"{name}.npy"))


@cache
def data_of(folder: str) -> Data:
    indptr, indices = array(folder, "indptr"), array(folder, "indices")
    destinations = torch.repeat_interleave(torch.arange(indptr.numel() - 1), indptr.diff())
    return Data(x=array(folder, "x"), y=array(folder, "y"), edge_index=torch.stack([indices, destinations]))


@cache
def loader_of(folder: str, fanouts: tuple[int, ...], batch_size: int) -> NeighborLoader:
    # Told that the edges are sorted: its set-up is measured by build.py, not here.
    return NeighborLoader(
        data_of(folder),
        list(fanouts),
        input_nodes=array(folder, "train"),
        batch_size=batch_size,
        shuffle=True,
        is_sorted=True,
        num_workers=0,
    )


def batches_of(settings: dict[str, Any]) -> Any:
    return iter(loader_of(settings["graph"], tuple(settings["fanouts"]), settings["batch_size"]))


def sampling(settings: dict[str, Any]) -> Answer:
    if settings.get("expansion") == "layered":
        return {"skipped": "PyG samples in the subgraph expansion only"}
    torch.set_num_threads(settings.get("threads", 1))
    sampler = loader_of(settings["graph"], tuple(settings["fanouts"]), settings["batch_size"]).node_sampler
    train = array(settings["graph"], "train")

    def one(step: int) -> Any:
        from torch_geometric.sampler import NodeSamplerInput

        generator = torch.Generator().manual_seed(step)
        seeds = train[torch.randperm(train.numel(), generator=generator)[: settings["batch_size"]]]
        return sampler.sample_from_nodes(NodeSamplerInput(None, seeds))

    value, out = median_ms(one, settings["batches"], warm_up=1)
    return {"value": value, "unit": "ms/batch", "nodes": out.node.numel(), "edges": out.row.numel()}


def loader(settings: dict[str, Any]) -> Answer:
    torch.set_num_threads(2)
    value = mean_ms(batches_of(settings), settings["batches"], warm_up=1)
    return {"value": value, "unit": "ms/batch", "peak_rss_mib": peak_rss_mib()}


def links(settings: dict[str, Any]) -> Answer:
    """ms per batch of links. Nothing is excluded: the loader has no way to."""
    torch.set_num_threads(2)
    folder = settings["graph"]
    users, items = array(folder, "users").long(), array(folder, "items").long()
    data = HeteroData()
    for node_type in ("user", "item"):
        data[node_type].x = array(folder, f"x_{node_type}")
    data["user", "buys", "item"].edge_index = torch.stack([users, items])
    data["item", "bought_by", "user"].edge_index = torch.stack([items, users])
    chosen = array(folder, "seeds")
    loader = LinkNeighborLoader(
        data,
        settings["fanouts"],
        edge_label_index=(("user", "buys", "item"), torch.stack([users[chosen], items[chosen]])),
        neg_sampling="binary",
        batch_size=settings["batch_size"],
        shuffle=True,
        num_workers=0,
    )
    nodes = sum(ids.numel() for ids in next(iter(loader)).collect("n_id").values())
    value = mean_ms(iter(loader), settings["batches"], warm_up=1)
    return {"value": value, "unit": "ms/batch", "nodes": nodes, "peak_rss_mib": peak_rss_mib()}


def train_step(settings: dict[str, Any]) -> Answer:
    torch.set_num_threads(2)
    torch.manual_seed(0)
    data = data_of(settings["graph"])
    model = GraphSAGE(data.num_features, 256, num_layers=3, out_channels=int(data.y.max()) + 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def steps() -> Any:
        for batch in batches_of(settings):
            # As the tutorials do: torch-sparse gives no counts per hop, by which PyG could trim the layers.
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = F.cross_entropy(out, batch.y[: batch.batch_size])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss.item()

    value = mean_ms(steps(), min(settings["batches"], 3), warm_up=1)
    return {"value": value, "unit": "ms/batch", "peak_rss_mib": peak_rss_mib()}


def set_up(settings: dict[str, Any]) -> Answer:
    """Seconds that the loader takes to be made from an unsorted edge list."""
    generator = np.random.default_rng(0)
    data = data_of(settings["graph"])
    order = torch.from_numpy(generator.permutation(data.edge_index.shape[1]))
    shuffled = Data(x=data.x, edge_index=data.edge_index[:, order])
    with PeakMemory() as peak:
        started = time.perf_counter()
        NeighborLoader(shuffled, [1], input_nodes=array(settings["graph"], "train"), batch_size=1)
        seconds = time.perf_counter() - started
    return {"value": seconds, "unit": "s", "peak_mib": peak.mib}


if __name__ == "__main__":
    answer_tasks({task.__name__: task for task in (sampling, loader, links, train_step, set_up)})
