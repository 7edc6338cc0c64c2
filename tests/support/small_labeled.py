"""A small graph with every kind of label, of nodes and of edges: classes, numbers with a unit, label sets."""

from __future__ import annotations

from pathlib import Path

import torch

from khop.graph.build import write_graph
from khop.graph.tables import EdgeTable, NodeTable

LIKE = ("item", "like", "item")


def write_labeled_graph(path: Path, nodes: int = 240) -> Path:
    """Items of one type whose labels follow from their features and neighbors.

    `price` is a number around 5,000, `kind` one of three classes of unequal size, `tags` a set of three
    labels with unknown entries (255), `size` two numbers. Edges have `stars`, one of three classes or -1, and
    `weight`, a number, which follow from the features of both ends, and a relation, `way`, 0 to 3.
    """
    generator = torch.Generator().manual_seed(11)
    x = torch.randn(nodes, 4, generator=generator)
    sources, destinations = torch.randint(nodes, (2, 6 * nodes), generator=generator)
    means = torch.zeros(nodes, 4).index_add(0, destinations, x[sources]) / 6
    tags = (x[:, :3] + means[:, :3] > 0).to(torch.uint8)
    tags[torch.rand(nodes, 3, generator=generator) < 0.1] = 255
    columns = {
        "x": x,
        "price": 5000 + 800 * (x[:, 0] + means[:, 1]),
        "size": torch.stack([x[:, 1] + 3, 10 * means[:, 2]], dim=1),
        "tags": tags,
        "kind": torch.bucketize(x[:, 3] + means[:, 0], torch.tensor([0.3, 1.2])),
    }
    order = torch.randperm(nodes, generator=generator)
    train, val, test = order.split([nodes // 2, nodes // 4, nodes - nodes // 2 - nodes // 4])
    items = NodeTable(
        columns=columns, splits={"train": train, "val": val, "test": test}, num_classes={"kind": 3}
    )
    felt = x[sources, 0] - x[destinations, 1]
    stars, weight = torch.bucketize(felt, torch.tensor([-0.5, 0.8])), 70 + 9 * felt
    unknown = torch.rand(felt.numel(), generator=generator) < 0.1
    of_edges = {"stars": stars.masked_fill(unknown, -1), "weight": weight}
    of_edges["way"] = ((sources * destinations) % 11).clamp(max=3)
    return write_graph(path, {"item": items}, {LIKE: EdgeTable(sources, destinations, of_edges)})


def write_two_labels(path: Path) -> Path:
    """Items with two label columns and the usual splits, and shops with another split."""
    item = NodeTable(
        columns={
            "x": torch.zeros(4, 2),
            "color": torch.tensor([0, 1, -1, 1]),
            "shape": torch.tensor([2, 2, 0, 1]),
        },
        splits={"train": torch.tensor([0, 1]), "val": torch.tensor([3]), "test": torch.tensor([2])},
        num_classes={"color": 2, "shape": 3},
    )
    tables = {"item": item, "shop": NodeTable(count=2, splits={"open": torch.tensor([1])})}
    edges = {("item", "in", "shop"): EdgeTable(torch.arange(4), torch.zeros(4, dtype=torch.int64))}
    return write_graph(path, tables, edges)
