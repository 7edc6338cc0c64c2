"""Tiny graphs, in one folder each and in parts, and checkpoints: what the fuzz of damage works on."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from torch import nn

from damage.questions import QUESTIONS, answer
from khop.api.partition import partition_graph
from khop.graph.build import write_graph
from khop.graph.tables import EdgeTable, NodeTable
from khop.training.checkpoint import StateCopy

CITES = ("paper", "cites", "paper")
BUYS, BOUGHT = ("user", "buys", "item"), ("item", "bought_by", "user")
PARTS = 3


def write_all(home: Path) -> None:
    """Write every folder below `home`; whatever is derived from the graphs is there too."""
    home.mkdir(parents=True)
    _write_papers(home / "papers")
    _write_shop(home / "shop")
    for name in ("papers", "shop"):
        partition_graph(home / name, home / f"{name}-parts", PARTS, method="hash", threads=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for path in home.iterdir():
            for question in QUESTIONS[path.name.removesuffix("-parts")]:
                answer(path, question)
    _write_checkpoints(home / "checkpoints")


def _write_papers(path: Path) -> None:
    """One node type; edges with times, which rows follow, and weights."""
    generator = torch.Generator().manual_seed(1)
    count, edges = 37, 210
    ends = torch.randint(count, (2, edges), generator=generator)
    columns = {
        "time": torch.randint(100, (edges,), generator=generator),
        "weight": torch.rand(edges, generator=generator),
    }
    train, val = torch.randperm(count, generator=generator).split([25, 12])
    x = torch.randn(count, 3, generator=generator)
    nodes = {"paper": NodeTable(columns={"x": x}, splits={"train": train, "val": val})}
    write_graph(path, nodes, {CITES: EdgeTable(ends[0], ends[1], columns=columns)}, sort_by="time")


def _write_shop(path: Path) -> None:
    """Two node types, an edge type and its reverse; items have times, edges to items have weights."""
    generator = torch.Generator().manual_seed(2)
    users, items, edges = 19, 23, 120
    buyers, bought = (torch.randint(most, (edges,), generator=generator) for most in (users, items))
    nodes = {
        "user": NodeTable(columns={"x": torch.randn(users, 2, generator=generator)}),
        "item": NodeTable(
            columns={
                "x": torch.randn(items, 3, generator=generator),
                "time": torch.randint(50, (items,), generator=generator),
            },
            splits={"train": torch.arange(15)},
        ),
    }
    price = torch.randint(1, 9, (edges,), generator=generator)
    tables = {
        BUYS: EdgeTable(buyers, bought, columns={"price": price}),
        BOUGHT: EdgeTable(bought, buyers, reverse_of=BUYS),
    }
    write_graph(path, nodes, tables, sort_by="time")


def _write_checkpoints(path: Path) -> None:
    for steps in (1, 2):
        torch.manual_seed(steps)
        model = nn.Linear(3, 2)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=0.1)
        for _ in range(steps):
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
        training = {"epoch": steps, "loss_sum": 0.5 / steps, "facts": {"model.hidden": "3"}}
        records = [{"epoch": epoch, "loss": 1 / (epoch + 1)} for epoch in range(steps)]
        StateCopy.of(model, optimizer, training, records).write(path / "last", keep=2)
