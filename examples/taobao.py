"""Who will look at what? Two GraphSAGE encoders, of users and of items: torch_geometric's Taobao tutorial.
Its data set where you have it (it is fetched into FOLDER if it is not there), else a generated shop.

python examples/taobao.py [--taobao FOLDER] [--epochs 3] [--procs 2]
"""

import argparse
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import HeteroData
from torch_geometric.datasets import Taobao
from torch_geometric.nn import SAGEConv
from torch_geometric.transforms import ToUndirected

import khop

TO, BACK, TOGETHER = ("user", "to", "item"), ("item", "rev_to", "user"), ("item", "with", "item")
FANOUTS = [{"user to item": 0, "*": 8}, {"user to item": 0, "*": 4}]


class Encoders(nn.Module):
    """Items hear items that go with them, users hear their items and what goes with those."""

    def __init__(self, graph: khop.Graph, width: int = 64) -> None:
        super().__init__()
        self.rows = nn.ModuleDict({t: nn.Embedding(graph.num_nodes(t), width) for t in ("user", "item")})
        self.layers = nn.ModuleList(SAGEConv((width, width), width) for _ in range(5))
        self.out = nn.ModuleDict({t: nn.Linear(width, width) for t in ("user", "item")})

    def forward(self, batch: khop.Batch) -> dict[str, Tensor]:
        def heard(layer: int, edges: khop.Adjacency, sources: Tensor, destinations: Tensor) -> Tensor:
            return self.layers[layer]((sources, destinations[: edges.num_dst]), edges.edge_index).relu()

        first, second = (block.adjacencies for block in batch.blocks)
        user, item = (self.rows[t](batch.sample.nodes[t]) for t in ("user", "item"))
        near, of_item = (heard(layer, first[TOGETHER], item, item) for layer in (0, 1))
        of_user = heard(3, second[BACK], near, heard(2, first[BACK], item, user))
        rows = {"user": of_user, "item": heard(4, second[TOGETHER], of_item, of_item)}
        return {t: self.out[t](of_type)[batch.sample.seed_index[t]] for t, of_type in rows.items()}


def write_split(folder: Path, taobao: str | None) -> None:
    """What each part of the links hears and is asked; the generated shop's users mostly keep to a taste."""
    data = HeteroData() if taobao is None else Taobao(taobao)[0].edge_type_subgraph([TO])
    if taobao is None:
        data["user"].num_nodes, data["item"].num_nodes = 2000, 1200
        draw, users = torch.Generator().manual_seed(0), torch.arange(40_000) // 20
        items = (torch.rand(users.numel(), generator=draw) ** 2 * 150).long() * 8 + users % 8
        strays = torch.randint(1200, items.shape, generator=draw)
        data[TO].edge_index = torch.stack([users, items.where(users * 7 % 11 > 0, strays)])
    split = khop.split_links(khop.graph_from_pyg(ToUndirected()(data)), TO, val=0.1, test=0.1)
    # Of training's edges alone: made of all, they would tell of those that are held out.
    together = {TOGETHER: khop.cooccurrence(split.train, TO, through="user", min_count=3)}
    train, val, test = (part.with_edges(together) for part in (split.train, split.val, split.test))
    replace(split, train=train, val=val, test=test).save(folder)


def train(rank: int, device: torch.device, taobao: str | None, epochs: int) -> None:
    folder = Path("graphs", "shop-split" if taobao is None else "taobao-split")
    if rank == 0 and not folder.exists():
        write_split(folder, taobao)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()  # until the folder is there, which all ranks map
    split = khop.LinkSplit.open(folder)
    binary = khop.UniformNegatives(per_positive=1)
    sampler = khop.LinkSampler(split.train, FANOUTS, negatives=binary, exclude="edge+reverse")
    loader = khop.Loader(sampler, split.train_links, batch_size=2048, shuffle=True, device=device)
    torch.manual_seed(0)
    model = khop.models.LinkPredictor(Encoders(split.train), {TO: khop.models.MLP(64)}).to(device)
    model = DistributedDataParallel(model) if torch.distributed.is_initialized() else model
    task, optimizer = khop.LinkPrediction("bce"), torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(epochs):
        for batch in loader.epoch(epoch):
            optimizer.zero_grad()
            batch.global_mean(task.losses(model(batch), batch)).backward()  # over the pairs of all ranks
            optimizer.step()
        val, test = (  # measured by all ranks
            khop.evaluate_links(model, *part, metrics=["roc-auc"], fanouts=FANOUTS, columns=[])["roc-auc"]
            for part in ((split.val, split.val_links), (split.test, split.test_links))
        )
        if rank == 0:
            print(f"epoch {epoch}: validation ROC AUC {val:.4f}, test {test:.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--taobao", help="root folder of torch_geometric.datasets.Taobao")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--procs", type=int, help="processes; default: one per GPU")
    options = parser.parse_args()
    khop.launch(train, procs=options.procs, arguments=(options.taobao, options.epochs))


if __name__ == "__main__":
    main()
