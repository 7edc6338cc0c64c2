"""The feature store over whole columns, in memory and mapped from a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from contracts.feature_store import BUYS, PROMISES, Columns, Make, int64
from khop.features.store import Rows
from khop.features.table import FeatureTable
from khop.graph.build import EdgeTable, NodeTable, write_graph
from khop.graph.folder import open_folder


def mapped(path: Path, columns: Columns) -> FeatureTable:
    edges = columns[BUYS]["price"].numel()
    in_order = EdgeTable(int64(*([0] * edges)), int64(*([0] * edges)), columns[BUYS])
    nodes = {name: NodeTable(columns=columns[name]) for name in ("user", "item")}
    return FeatureTable(open_folder(write_graph(path, nodes, {BUYS: in_order})).columns())


@pytest.fixture(params=["in memory", "mapped", "two threads"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    makers: dict[str, Make] = {
        "in memory": FeatureTable,
        "mapped": lambda columns: mapped(tmp_path / "g", columns),
        "two threads": lambda columns: FeatureTable(columns, threads=2),
    }
    return makers[request.param]


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_it_keeps(promise: Callable[[Make], None], make: Make) -> None:
    promise(make)


def test_the_number_of_threads_changes_nothing() -> None:
    x = torch.arange(300_000.0).view(-1, 6)
    ids = (torch.arange(90_000) * 7919) % len(x)
    one, four = (FeatureTable({"item": {"x": x}}, n).gather({"item": Rows(ids, ("x",))}) for n in (1, 4))
    assert torch.equal(one["item"]["x"], four["item"]["x"])
    assert torch.equal(one["item"]["x"], x[ids])
