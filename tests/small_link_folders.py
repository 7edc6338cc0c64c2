"""A small graph folder from whose links something can be learnt in a second."""

from __future__ import annotations

from pathlib import Path

import torch

from khop.graph.build import EdgeTable, NodeTable, write_graph

BUYS, BOUGHT_BY = ("user", "buys", "item"), ("item", "bought_by", "user")
SEES = ("user", "sees", "shop")


def write_shop(path: Path, users: int = 120, items: int = 80, tastes: int = 4) -> Path:
    """Users buy items of their taste, which columns tell dimly; what shops they see means nothing."""
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
            BUYS: EdgeTable(buys[0], buys[1], reverse_of=BOUGHT_BY),
            BOUGHT_BY: EdgeTable(buys[1], buys[0], reverse_of=BUYS),
            SEES: EdgeTable(torch.arange(users), seen),
        },
    )
