"""A small typed graph folder with columns of every kind: what a partition has to carry along."""

from __future__ import annotations

from pathlib import Path

import torch

from khop.graph.build import write_graph
from khop.graph.tables import EdgeTable, NodeTable

BUYS = ("user", "buys", "item")
BOUGHT = ("item", "bought", "user")
LIKE = ("item", "like", "item")
WEARS = ("item", "wears", "tag")


def write_typed_graph(path: Path, *, renumbered: bool = False) -> Path:
    """300 users in 6 circles of friends with tastes of their own, 200 items, and tags that nothing reaches.

    Users and items have features (bfloat16 and int64), labels and splits, purchases times and weights.
    With `renumbered`, users have original ids that are not their ids.
    """
    generator = torch.Generator().manual_seed(5)
    users = torch.randint(300, (3000,), generator=generator)
    items = (users % 6 + 6 * torch.randint(33, (3000,), generator=generator)) % 200
    order = torch.randperm(300, generator=generator)
    user_columns = {"x": torch.randn(300, 3, generator=generator).bfloat16(), "age": torch.arange(300) % 80}
    if renumbered:
        user_columns["original_id"] = torch.randperm(300, generator=generator) + 1000
    purchases = {
        "time": torch.randint(10_000, (3000,), generator=generator),
        "weight": torch.rand(3000, generator=generator),
    }
    return write_graph(
        path,
        {
            "user": NodeTable(
                columns=user_columns,
                splits={"train": order[:150], "val": order[150:200], "test": order[200:]},
                num_classes={"age": 80},
            ),
            "item": NodeTable(columns={"price": torch.rand(200)}, splits={"train": torch.arange(0, 200, 3)}),
            "tag": NodeTable(count=7),
        },
        {
            BUYS: EdgeTable(users, items, purchases),
            BOUGHT: EdgeTable(items, users, reverse_of=BUYS),
            LIKE: EdgeTable(items[:900], items[100:1000]),
        },
        sort_by="time",
    )


def write_tiny_graph(path: Path, *, columns: bool = True) -> Path:
    """Three users, two items without columns, one tag that nothing reaches, and shops of which there is none.

    Cut into five parts, most own nothing of a type, and one has the training seed.
    """
    users, items, nobody = torch.tensor([0, 0, 1, 2, 1]), torch.tensor([0, 1, 1, 0, 0]), torch.empty(0).long()
    of_users = {"x": torch.arange(6.0).view(3, 2), "age": torch.arange(3)}
    splits = {"train": torch.tensor([1]), "test": torch.tensor([2, 0])}
    nodes = {
        "user": NodeTable(3, splits=splits),
        "item": NodeTable(2),
        "tag": NodeTable(1),
        "shop": NodeTable(0),
    }
    if columns:
        nodes["user"] = NodeTable(columns=of_users, splits=splits, num_classes={"age": 3})
        nodes["shop"] = NodeTable(columns={"x": torch.empty(0, 2)})
    edges = {
        BUYS: EdgeTable(users, items),
        BOUGHT: EdgeTable(items, users, reverse_of=BUYS),
        WEARS: EdgeTable(nobody, nobody),
    }
    return write_graph(path, nodes, edges)
