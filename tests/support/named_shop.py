"""A shop with the users' names: ids of text and of integers, classes with names, a label with a unit."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from khop.graph.build import write_graph
from khop.graph.tables import EdgeTable, NodeTable

BUYS, BOUGHT_BY = ("user", "buys", "item"), ("item", "bought-by", "user")
CLASSES = ["hat", "shoe", "mütze"]
RECORD = {
    "nodes": {
        "item": {"label": {"kind": "class", "classes": CLASSES}},
        "user": {"label": {"kind": "number", "unit": "EUR"}},
    }
}


def user_ids(count: int) -> list[str]:
    """Return ids of different lengths, in several alphabets; one is empty."""
    return ["", *(f"{'ü' * (n % 5)}user-{n}{'語' * (n % 3)}" for n in range(1, count))]


def write_named_shop(path: Path, users: int = 90, items: int = 60) -> Path:
    """Users with ids of text and an expense in EUR buy items with ids of integers and a class."""
    random = torch.Generator().manual_seed(17)
    sources, destinations = (torch.randint(count, (900,), generator=random) for count in (users, items))
    spent = 20 * torch.rand(users, generator=random)
    splits = {
        t: dict(zip(("train", "val", "test"), torch.randperm(n, generator=random).chunk(3), strict=True))
        for t, n in (("user", users), ("item", items))
    }
    labels = torch.randint(3, (items,), generator=random)
    nodes = {
        "user": NodeTable(
            columns={"x": torch.randn(users, 3, generator=random), "label": spent},
            splits=splits["user"],
            ids=user_ids(users),
        ),
        "item": NodeTable(
            columns={"x": torch.randn(items, 4, generator=random), "label": labels},
            splits=splits["item"],
            num_classes={"label": 3},
            ids=(torch.arange(items) * 7 - 100).tolist(),
        ),
    }
    edges = {
        BUYS: EdgeTable(sources, destinations, reverse_of=BOUGHT_BY),
        BOUGHT_BY: EdgeTable(destinations, sources, reverse_of=BUYS),
    }
    return write_graph(path, nodes, edges, documents={"import.json": json.dumps(RECORD).encode()})
