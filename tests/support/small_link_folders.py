"""A small graph folder from whose links something can be learnt in a second."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from khop.graph.build import write_graph
from khop.graph.tables import EdgeTable, NodeTable

BUYS, BOUGHT_BY = ("user", "buys", "item"), ("item", "bought_by", "user")
SEES = ("user", "sees", "shop")


def write_shop(
    path: Path, users: int = 120, items: int = 80, tastes: int = 4, *, one_way: bool = False
) -> Path:
    """Users buy items of their taste, which columns tell dimly; what shops they see means nothing.

    What is `one_way` has no edges from items to users.
    """
    random = torch.Generator().manual_seed(3)
    taste_of_user = torch.randint(tastes, (users,), generator=random)
    taste_of_item = torch.randint(tastes, (items,), generator=random)

    def dimly(taste: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(taste.numel(), tastes, generator=random)
        return torch.nn.functional.one_hot(taste, tastes) + 0.7 * noise

    fits = taste_of_user[:, None] == taste_of_item
    buys = (torch.rand(users, items, generator=random) < torch.where(fits, 0.4, 0.01)).nonzero().T
    seen = torch.randint(5, (users,), generator=random)
    return write_graph(
        path,
        {
            "user": NodeTable(columns={"x": dimly(taste_of_user)}),
            "item": NodeTable(columns={"x": dimly(taste_of_item)}),
            "shop": NodeTable(5),
        },
        {
            BUYS: EdgeTable(buys[0], buys[1], reverse_of=None if one_way else BOUGHT_BY),
            **({} if one_way else {BOUGHT_BY: EdgeTable(buys[1], buys[0], reverse_of=BUYS)}),
            SEES: EdgeTable(torch.arange(users), seen),
        },
    )


def write_dated(path: Path) -> Path:
    """The diary as an import leaves it that splits by time: with days of validation and of test."""
    cut_offs = json.dumps({"time_split": {"val": 90, "test": 120}})
    return write_diary(path, "time", {"import.json": cut_offs.encode()})


def write_diary(path: Path, day: str = "day", documents: dict[str, bytes] | None = None) -> Path:
    """Users with a kind and a day, and what they bought on which day, of items that came out before."""
    random = torch.Generator().manual_seed(1)
    users, items = torch.randint(90, (900,), generator=random), torch.randint(40, (900,), generator=random)
    kinds, out = torch.randint(3, (90,), generator=random), torch.arange(40) * 5 // 2
    days = out[items] + torch.randint(100, (900,), generator=random)
    columns = {day: days, "price": torch.rand(900, generator=random)}
    x = torch.nn.functional.one_hot(kinds) + torch.randn(90, 3, generator=random)
    order = torch.randperm(90, generator=random)
    nodes = {
        "user": NodeTable(
            columns={"x": x, "kind": kinds, day: torch.randint(200, (90,), generator=random)},
            splits={"train": order[:50], "val": order[50:70], "test": order[70:]},
            num_classes={"kind": 3},
        ),
        "item": NodeTable(columns={"x": torch.randn(40, 4, generator=random), day: out}),
    }
    edges = {
        BUYS: EdgeTable(users, items, columns, reverse_of=BOUGHT_BY),
        BOUGHT_BY: EdgeTable(items, users, columns),
    }
    return write_graph(path, nodes, edges, sort_by=day, documents=documents)
