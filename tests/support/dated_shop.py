"""A shop of which an import has split the links by time, and loaders over its splits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch

import khop
from khop.api.split_links import edges_of_split, split_links_by_column, split_links_by_time
from khop.graph.build import write_graph
from khop.graph.folder import TimeCutOffs
from khop.graph.tables import EdgeTable, NodeTable

BUYS, BOUGHT_BY = ("user", "buys", "item"), ("item", "bought_by", "user")
CUT_OFFS = TimeCutOffs(60, 80)
Loaders = Callable[[khop.Graph], list[khop.Loader]]


def write_dated_shop(path: Path, *, time_shape: tuple[int, ...] = ()) -> Path:
    """Users with days of their own buy items that come out day by day; items have no times."""
    random = torch.Generator().manual_seed(9)
    days = torch.randint(100, (700,), generator=random).sort().values
    users = torch.randint(60, (700,), generator=random)
    items = (torch.rand(700, generator=random) * (10 + days * 0.4)).long()
    parts = torch.randint(-1, 3, (700,), generator=random)
    columns = {"time": days, "split": parts.to(torch.int8)}
    order, joined = torch.randperm(60, generator=random), torch.randint(90, (60,), generator=random)
    splits = {"train": order[:30], "val": order[30:45], "test": order[45:]}
    x, kinds = torch.randn(60, 3, generator=random), torch.randint(3, (60,), generator=random)
    return write_graph(
        path,
        {
            "user": NodeTable(
                columns={"x": x, "kind": kinds, "time": joined.view(-1, *time_shape)},
                splits=splits,
                num_classes={"kind": 3},
            ),
            "item": NodeTable(columns={"x": torch.randn(50, 4, generator=random)}),
        },
        {
            BUYS: EdgeTable(users, items, columns, reverse_of=BOUGHT_BY),
            BOUGHT_BY: EdgeTable(items, users, columns, reverse_of=BUYS),
        },
        sort_by=None if time_shape else "time",
        documents={"import.json": json.dumps({"time_split": vars(CUT_OFFS)}).encode()},
    )


def _of_links(split: khop.LinkSplit, rule: khop.Rule) -> list[khop.Loader]:
    """Return loaders of training with drawn negatives, and of validation and test with theirs."""
    negatives = khop.UniformNegatives(2, exact=True)
    sampler = khop.LinkSampler(split.train, [3, 2], negatives=negatives, rule=rule)
    held_out = [(split.val, split.val_links), (split.test, split.test_links)]
    given = [
        (khop.LinkSampler(graph, [3], negatives=khop.GivenNegatives(), rule=rule), links)
        for graph, links in held_out
    ]
    return [
        khop.Loader(of, links, 64, shuffle=True, seed=3, columns={"user": ["x"], "item": ["x"]})
        for of, links in [(sampler, split.train_links), *given]
    ]


def links_by_time(graph: khop.Graph) -> list[khop.Loader]:
    split = split_links_by_time(graph, BUYS, CUT_OFFS, negatives=3, time="time", seed=5)
    return _of_links(split, khop.Temporal("time"))


def links_by_column(graph: khop.Graph) -> list[khop.Loader]:
    return _of_links(split_links_by_column(graph, BUYS, negatives=3, seed=5), khop.Uniform())


def links_of_one_type(graph: khop.Graph) -> list[khop.Loader]:
    """Without the reverse edges, which owners of the sources would otherwise have."""
    split = split_links_by_time(graph.only([BUYS]), BUYS, CUT_OFFS, negatives=3, seed=5)
    negatives = khop.DegreeNegatives(2, exact=True)
    sampler = khop.LinkSampler(split.train, [2], negatives=negatives, exclude="edge")
    return [khop.Loader(sampler, split.train_links, 64)]


def nodes_by_time(graph: khop.Graph) -> list[khop.Loader]:
    """Each split of nodes over the edges that it may use."""
    graphs = {name: edges_of_split(graph, name) for name in ("train", "val", "test")}
    return [
        khop.Loader(khop.NeighborSampler(of, [4, 3]), graph.split(name), 16, columns={"item": ["x"]})
        for name, of in graphs.items()
    ]


DATED: list[Loaders] = [links_by_time, links_by_column, links_of_one_type, nodes_by_time]
