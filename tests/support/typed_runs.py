"""Runs over a small typed graph."""

from __future__ import annotations

from pathlib import Path

import torch

from khop.graph.build import write_graph
from khop.graph.tables import EdgeTable, NodeTable
from khop.run.build import Run, prepare
from khop.run.read import RawRun

BUYS, BOUGHT_BY, ON = ("user", "buys", "item"), ("item", "bought_by", "user"), ("tag", "on", "item")


def write_tagged_shop(path: Path) -> Path:
    """Users, items of four kinds to classify, and tags without columns."""
    generator = torch.Generator().manual_seed(5)
    items = torch.arange(60)
    nodes = {
        "user": NodeTable(columns={"x": torch.randn(40, 3, generator=generator)}),
        "item": NodeTable(
            columns={"x": torch.randn(60, 5, generator=generator), "kind": items % 4},
            splits={"train": items[:40], "val": items[40:50], "test": items[50:]},
            num_classes={"kind": 4},
        ),
        "tag": NodeTable(count=7),
    }
    users = torch.randint(40, (300,), generator=generator)
    bought = torch.randint(60, (300,), generator=generator)
    tags = torch.randint(7, (90,), generator=generator)
    edges = {
        BUYS: EdgeTable(users, bought),
        BOUGHT_BY: EdgeTable(bought, users),
        ON: EdgeTable(tags, torch.randint(60, (90,), generator=generator)),
    }
    return write_graph(path, nodes, edges)


def prepared(shop: Path, **tables: object) -> Run:
    fanouts = {"fanouts": [{"* buys *": 4, "*": 2}, 3]}
    return prepare(RawRun({"graph": str(shop), "sampler": fanouts, **tables}, "run.toml"), shop.parent)
