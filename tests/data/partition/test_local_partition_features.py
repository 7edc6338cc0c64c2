"""The columns of all parts are a feature store with the rows of the graph that was cut."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
import torch

from khop.api.partition import partition_graph
from khop.graph.build import write_graph
from khop.graph.features.store import Rows
from khop.graph.folder import open_folder
from khop.graph.inputs import quantize
from khop.graph.partitions.local_partitions import LocalPartitionFeatures
from khop.graph.partitions.parts_folder import open_parts
from khop.graph.tables import EdgeTable, NodeTable
from khop.testing.feature_store import BUYS, PROMISES, Columns, Make, int64
from support.parts_as_whole import OldIds, TableAsWhole


@pytest.fixture(params=[pytest.param("random", marks=pytest.mark.long), "hash", "on disk"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    numbers = count()
    method, room_bytes = ("hash", 0) if request.param == "on disk" else (request.param, None)

    def as_whole(columns: Columns) -> TableAsWhole:
        home = tmp_path / f"{next(numbers)}"
        home.mkdir()
        bought = EdgeTable(int64(0, 1, 2, 3, 0, 1), int64(0, 0, 1, 2, 3, 4), columns[BUYS])
        nodes = {t: NodeTable(columns=columns[t]) for t in ("user", "item")}
        whole = write_graph(home / "whole", nodes, {BUYS: bought})
        partition_graph(whole, home / "parts", 3, method=method)
        parts = open_parts(home / "parts")
        features = LocalPartitionFeatures(parts, room_bytes=room_bytes)
        return TableAsWhole(OldIds(open_folder(whole), parts), features)

    return as_whole


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_it_keeps(promise: Callable[[Make], None], make: Make) -> None:
    promise(make)


def test_quantized_rows_are_widened_by_their_scales(tmp_path: Path) -> None:
    x = torch.arange(24.0).view(8, 3)
    whole = write_graph(tmp_path / "whole", {"user": NodeTable(columns={"x": quantize(x)})}, {})
    partition_graph(whole, tmp_path / "parts", 2, method="range")
    rows = Rows(int64(7, 0, 4), ("x",), as_float32=frozenset({"x"}))
    (found,) = LocalPartitionFeatures(open_parts(tmp_path / "parts")).gather({"user": rows})["user"].values()
    torch.testing.assert_close(found, x[[7, 0, 4]], atol=0.1, rtol=0)


def test_parts_give_the_rows_that_they_hold_alone(tmp_path: Path) -> None:
    whole = write_graph(tmp_path / "whole", {"user": NodeTable(columns={"age": torch.arange(8)})}, {})
    partition_graph(whole, tmp_path / "parts", 4, method="range")
    table = LocalPartitionFeatures(open_parts(tmp_path / "parts", [2]))
    assert table.gather({"user": Rows(int64(5, 4, 5), ("age",))})["user"]["age"].tolist() == [5, 4, 5]
    with pytest.raises(
        ValueError, match=r"'age' of 'user': row id 3 at position 1: must be in \[4, 6\), the rows of part 2"
    ):
        table.gather({"user": Rows(int64(5, 3), ("age",))})
