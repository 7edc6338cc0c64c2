from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.importing.shop import at, events, spec

from khop import import_tables, open_graph
from khop.api.open_graph import Graph
from khop.api.time_split import (
    TimeCutOffs,
    edges_before,
    split_links_by_column,
    split_links_by_time,
    time_cut_offs,
)

BUYS, BACK = ("user", "buys", "item"), ("item", "bought-by", "user")


@pytest.fixture
def shop(tmp_path: Path) -> Graph:
    import_tables(spec(), tmp_path / "shop")
    return open_graph(tmp_path / "shop")


def micros(day: int) -> int:
    return round(at(day).timestamp() * 10**6)


def pairs(graph: Graph, edge_type: tuple[str, str, str]) -> list[tuple[int, int]]:
    csc = graph.csc(edge_type)
    return list(zip(csc.indices.tolist(), csc.destinations().tolist(), strict=True))


def test_a_folder_records_its_cut_offs(shop: Graph) -> None:
    assert time_cut_offs(shop) == TimeCutOffs(micros(20), micros(25))
    assert time_cut_offs(shop.only([BUYS])) == TimeCutOffs(micros(20), micros(25))


def test_a_graph_without_a_split_by_time_has_none(tmp_path: Path) -> None:
    import_tables(spec(splits=None), tmp_path / "out")
    assert time_cut_offs(open_graph(tmp_path / "out")) is None


def test_edges_before_a_time_keep_order_columns_and_nodes(shop: Graph) -> None:
    before = edges_before(shop, micros(20))
    assert pairs(before, BUYS) == [(1, 0), (0, 0), (0, 1), (2, 1), (1, 2)]
    assert sorted((b, a) for a, b in pairs(before, BACK)) == sorted(pairs(before, BUYS))
    assert before.columns[BUYS]["time"].max() < micros(20)
    assert before.num_nodes("item") == 4
    assert before.columns["item"]["x"].equal(shop.columns["item"]["x"])


def test_links_are_split_by_their_times(shop: Graph) -> None:
    split = split_links_by_time(shop, BUYS, TimeCutOffs(micros(20), micros(25)), negatives=1)
    links = [part.edges[BUYS].T.tolist() for part in (split.train_links, split.val_links, split.test_links)]
    assert links == [[[1, 0], [0, 0], [0, 1], [2, 1], [1, 2]], [[0, 2]], [[2, 3]]]
    assert len(pairs(split.train, BUYS)) == len(pairs(split.val, BACK)) == 5
    assert len(pairs(split.test, BUYS)) == len(pairs(split.test, BACK)) == 6


def test_a_part_without_links_is_refused(shop: Graph) -> None:
    with pytest.raises(ValueError, match="none is of test; change the split"):
        split_links_by_time(shop, BUYS, TimeCutOffs(micros(20), micros(30)))


def test_links_are_split_by_a_column(tmp_path: Path) -> None:
    parts = pa.array(["train", "train", "test", None, "val", "train", "train", None])
    changes = {
        "splits": None,
        "edges.user buys item.rows": events().append_column("part", parts),
        "edges.user buys item.split": {"column": "part"},
    }
    import_tables(spec(**changes), tmp_path / "out")
    graph = open_graph(tmp_path / "out")
    split = split_links_by_column(graph, BUYS)
    assert [part.edges[BUYS].shape[1] for part in (split.train_links, split.val_links, split.test_links)] == [
        4,
        1,
        1,
    ]
    assert len(pairs(split.train, BUYS)) == len(pairs(split.train, BACK)) == 4
    assert len(pairs(split.test, BUYS)) == 5


def test_links_without_the_column_are_refused(shop: Graph) -> None:
    with pytest.raises(ValueError, match="have no column 'split'"):
        split_links_by_column(shop, BUYS)
