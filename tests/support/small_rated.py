"""A small graph of items that users, who have no columns, rate; and of makers, whom few items name."""

from __future__ import annotations

from pathlib import Path

import torch

from khop.graph.build import write_graph
from khop.graph.tables import EdgeTable, NodeTable

ITEM, USER, MAKER = "item", "user", "maker"
RATES, MAKES = (USER, "rates", ITEM), (MAKER, "makes", ITEM)


def write_rated(path: Path, users: int = 300, items: int = 200) -> Path:
    """Labels tell which users rate an item; the 200 items come first, however many users there are."""
    draw = torch.Generator().manual_seed(5)
    kind = torch.randint(3, (items,), generator=draw)
    raters = torch.randint(100, (items * 5,), generator=draw)
    rated = torch.arange(items).repeat_interleave(5)
    return write_graph(
        path,
        {
            ITEM: NodeTable(
                columns={"x": torch.randn(items, 4, generator=draw), "kind": kind},
                splits={"train": torch.arange(100), "val": torch.arange(100, 150)},
                num_classes={"kind": 3},
            ),
            USER: NodeTable(users),
            MAKER: NodeTable(7),
        },
        {
            RATES: EdgeTable(raters * 3 + kind[rated], rated),
            MAKES: EdgeTable(torch.arange(7), torch.arange(7)),
        },
    )
