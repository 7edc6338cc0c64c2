"""A small folder with everything a folder can have."""

from __future__ import annotations

from pathlib import Path

import torch

from khop.graph.build import write_graph
from khop.graph.tables import EdgeTable, NodeTable


def write_small_shop(path: Path) -> Path:
    """Users who buy items: features of two kinds, labels, splits, an edge column, a reverse edge type."""
    buyers, bought = torch.tensor([0, 3, 1, 0, 2]), torch.tensor([2, 0, 2, 1, 0])
    nodes = {
        "user": NodeTable(4),
        "item": NodeTable(
            columns={
                "x": torch.arange(6.0).view(3, 2),
                "half": torch.tensor([1.0, 2.0, -3.0]).bfloat16(),
                "y": torch.tensor([0, -1, 2]),
                "original_id": torch.tensor([7, 5, 6]),
            },
            splits={"train": torch.tensor([2]), "test": torch.tensor([1, 0])},
            num_classes={"y": 3},
        ),
    }
    edges = {
        ("user", "buys", "item"): EdgeTable(buyers, bought, {"price": torch.arange(5.0)}),
        ("item", "bought-by", "user"): EdgeTable(bought, buyers, reverse_of=("user", "buys", "item")),
    }
    return write_graph(path, nodes, edges)
