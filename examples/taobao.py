"""Who will look at what? Links between users and items, predicted by two GraphSAGE encoders.

What torch_geometric's Taobao tutorial does, on its data set where you have it, else on a generated shop.
Ranks share every batch and every evaluation: --procs starts several, and so does torchrun.

python examples/taobao.py [--taobao FOLDER] [--epochs 3] [--procs 2]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import SAGEConv
from torchmetrics import MeanMetric
from torchmetrics.classification import BinaryAUROC

import khop

TO, BACK, TOGETHER = ("user", "to", "item"), ("item", "rev_to", "user"), ("item", "with", "item")
FANOUTS = [{"user to item": 0, "*": 8}, {"user to item": 0, "*": 4}]


class Recommender(nn.Module):
    """Items hear items that go with them, users hear theirs and what goes with those; an MLP scores pairs."""

    def __init__(self, users: int, items: int, width: int = 64) -> None:
        super().__init__()
        self.rows = nn.ModuleDict({"user": nn.Embedding(users, width), "item": nn.Embedding(items, width)})
        self.item_layers = nn.ModuleList(SAGEConv((width, width), width) for _ in range(2))
        self.user_layers = nn.ModuleList(SAGEConv((width, width), width) for _ in range(3))
        self.out = nn.ModuleDict({"user": nn.Linear(width, width), "item": nn.Linear(width, width)})
        self.decoder = khop.models.MLP(width)

    def forward(self, batch: khop.Batch) -> Tensor:
        """One logit per pair of the batch."""
        first, second = batch.blocks
        user, item = (self.rows[t](batch.sample.nodes[t]) for t in ("user", "item"))
        of_item = heard(self.item_layers[0], item, item, first, TOGETHER)
        of_item = heard(self.item_layers[1], of_item, of_item, second, TOGETHER)
        near = heard(self.user_layers[0], item, item, first, TOGETHER)
        of_user = heard(self.user_layers[1], item, user, first, BACK)
        of_user = heard(self.user_layers[2], near, of_user, second, BACK)
        found = {"user": of_user, "item": of_item}
        found = {t: self.out[t](rows)[batch.sample.seed_index[t]] for t, rows in found.items()}
        links = batch.links[TO]
        return self.decoder(found["user"][links.source], found["item"][links.destination])


def heard(
    layer: nn.Module, sources: Tensor, destinations: Tensor, block: khop.Block, edge_type: tuple
) -> Tensor:
    rows = (sources, destinations[: block.dst_counts[edge_type[2]]])
    return layer(rows, block.adjacencies[edge_type].edge_index).relu()


def parts_of(graph: khop.Graph) -> dict[str, tuple[khop.Graph, khop.Links]]:
    """What each part of the split hears, and what it is asked."""
    split = khop.split_links(graph, TO, val=0.1, test=0.1, negatives=1)
    together = khop.cooccurrence(split.train, TO, through="user", min_count=3)  # of training's edges alone
    parts = {
        "train": (split.train, split.train_links),
        "val": (split.val, split.val_links),
        "test": (split.test, split.test_links),
    }
    return {name: (part.with_edges({TOGETHER: together}), links) for name, (part, links) in parts.items()}


def loader_of(graph: khop.Graph, links: khop.Links, device: torch.device) -> khop.Loader:
    """Links without negatives get new ones in every epoch; those that bring some along are for evaluation."""
    is_training = links.negatives is None
    negatives = khop.UniformNegatives() if is_training else khop.GivenNegatives()
    sampler = khop.LinkSampler(graph, FANOUTS, negatives=negatives, exclude="edge+reverse")
    return khop.Loader(sampler, links, batch_size=2048, shuffle=is_training, device=device)


@torch.no_grad()
def auc(model: nn.Module, loader: khop.Loader) -> float:
    """Over all pairs of all ranks."""
    metric = BinaryAUROC().to(next(model.parameters()).device)
    for batch in loader.epoch(0):
        metric.update(model(batch), batch.links[TO].labels.int())
    return float(metric.compute())


def shop_folder(taobao: str | None) -> Path:
    """A graph folder of Taobao, or of 2,000 users who mostly look at items of their own taste."""
    folder = Path("graphs", "generated-shop" if taobao is None else "taobao")
    if folder.exists():
        return folder
    if taobao is None:
        draw = torch.Generator().manual_seed(0)
        users = torch.arange(2000).repeat_interleave(20)
        tastes = torch.randint(8, (2000,), generator=draw)[users]
        items = (torch.rand(users.numel(), generator=draw) ** 2 * 150).long() * 8 + tastes
        strays = torch.rand(users.numel(), generator=draw) < 0.1
        items[strays] = torch.randint(1200, (int(strays.sum()),), generator=draw)
        counts = {"user": 2000, "item": 1200}
    else:
        from torch_geometric.datasets import Taobao

        data = Taobao(taobao)[0]
        users, items = data["user", "item"].edge_index
        counts = {t: data[t].num_nodes for t in ("user", "item")}
    nodes = {t: khop.NodeTable(count) for t, count in counts.items()}
    edges = {
        TO: khop.EdgeTable(users, items, reverse_of=BACK),
        BACK: khop.EdgeTable(items, users, reverse_of=TO),
    }
    return khop.write_graph(folder, nodes, edges)


def train(rank: int, device: torch.device, taobao: str | None, epochs: int) -> None:
    if rank == 0:
        shop_folder(taobao)
    if dist.is_initialized():
        dist.barrier()  # until the folder is there
    graph = khop.open_graph(shop_folder(taobao))
    parts = {name: loader_of(*part, device) for name, part in parts_of(graph).items()}
    torch.manual_seed(0)
    model = Recommender(graph.num_nodes("user"), graph.num_nodes("item")).to(device)
    model = DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(epochs):
        mean = MeanMetric().to(device)
        for batch in parts["train"].epoch(epoch):
            labels = batch.links[TO].labels
            losses = F.binary_cross_entropy_with_logits(model(batch), labels, reduction="none")
            optimizer.zero_grad()
            batch.global_mean(losses).backward()
            optimizer.step()
            mean.update(losses.detach())
        loss, val, test = float(mean.compute()), auc(model, parts["val"]), auc(model, parts["test"])
        if rank == 0:
            print(f"epoch {epoch}: loss {loss:.4f}, AUC val {val:.4f}, test {test:.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--taobao", help="root folder of torch_geometric.datasets.Taobao")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--procs", type=int)
    options = parser.parse_args()
    khop.launch(train, procs=options.procs, arguments=(options.taobao, options.epochs))


if __name__ == "__main__":
    main()
