"""A plain torch loop: `for batch in loader` is one epoch, and a checkpoint continues with the next batch.

python examples/plain_loop.py [--graph FOLDER] [--epochs 3] [--state plain.pt]
"""

from __future__ import annotations

import argparse
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import khop


@torch.no_grad()
def accuracy(model: nn.Module, loader: khop.Loader, label: str, batches: int | None) -> float:
    """Of the first batches of an epoch, or of all: the next call begins a new epoch in both cases."""
    model.eval()
    right = [model(batch).argmax(1) == batch.seed_column(label) for batch in islice(loader, batches)]
    return torch.cat(right).double().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--graph", type=Path, help="a graph folder; default: Debian's packages")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--state", type=Path, default=Path("plain.pt"), help="where the checkpoint is")
    parser.add_argument(
        "--stop", type=int, help="save and stop after this many steps; the next call continues"
    )
    parser.add_argument("--val-batches", type=int, help="batches of a validation; default: all")
    options = parser.parse_args()

    torch.manual_seed(0)
    graph = khop.open_graph(options.graph or khop.builtin_folder("debian", cache=Path("graphs")))
    label = khop.NodeClassification.of(graph.schema).label
    sampler = khop.NeighborSampler(graph, fanouts=[5, 5])
    wanted = {"batch_size": 256, "columns": ["x"], "seed_columns": [label]}
    training = khop.Loader(sampler, graph.split("train"), shuffle=True, **wanted)
    validation = khop.Loader(sampler, graph.split("val"), **wanted)
    model = khop.models.SAGE.for_graph(graph, hidden=64, layers=2, dropout=0.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    parts = {"model": model, "optimizer": optimizer, "loader": training}
    if options.state.exists():
        saved = torch.load(options.state, weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(saved[name])

    steps = 0
    while (epoch := training.state_dict()["epoch"]) < options.epochs:
        total = seeds = 0.0
        model.train()
        for batch in training:
            losses = F.cross_entropy(model(batch), batch.seed_column(label), reduction="none")
            optimizer.zero_grad()
            batch.global_mean(losses).backward()
            optimizer.step()
            total, seeds, steps = total + float(losses.detach().sum()), seeds + len(losses), steps + 1
            if steps == options.stop:
                torch.save({name: part.state_dict() for name, part in parts.items()}, options.state)
                return
        score = accuracy(model, validation, label, options.val_batches)
        print(f"epoch {epoch}: loss {total / seeds:.6f}, validation accuracy {score:.4f}")


if __name__ == "__main__":
    main()
