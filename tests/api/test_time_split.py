from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
import torch

import khop
from data.tables.shop import at, events, spec
from khop import import_tables, open_graph
from khop.api.open_graph import Graph
from khop.api.split_links import (
    edges_before,
    edges_of_split,
    split_links_by_column,
    split_links_by_time,
    time_cut_offs,
)
from khop.cli.graph import sort
from khop.graph.folder import TimeCutOffs
from support.same_samples import assert_same

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
    split = split_links_by_time(shop, BUYS, TimeCutOffs(micros(20), micros(25)), negatives=0)
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


def many(*, extra: bool = False) -> dict[str, object]:
    """Return tables of 40 users, 30 items and 300 events over 28 days; the last items come last."""
    draw = torch.Generator().manual_seed(3)
    days = torch.randint(1, 28, (300,), generator=draw).sort().values
    item = (torch.rand(300, generator=draw) * (10 + 20 * days / 28)).long()
    user = torch.randint(0, 40, (300,), generator=draw)
    rows = [(f"u{u}", f"i{i}", "buy", at(int(d))) for u, i, d in zip(user, item, days, strict=True)]
    more = [("u0", "new", "buy", at(27))] if extra else []
    names = ("user_id", "item_id", "kind", "ts")
    table = pa.table({name: [row[n] for row in rows + more] for n, name in enumerate(names)})
    table = table.set_column(3, "ts", table["ts"].cast(pa.timestamp("us", "UTC")))
    ids = [f"i{n}" for n in range(30)] + (["new"] if extra else [])
    items = pa.table({"item_id": ids, "price": [float(n) for n in range(len(ids))]})
    users = pa.table({"user_id": [f"u{n}" for n in range(40)], "age": [float(n % 7) for n in range(40)]})
    return {
        "nodes.user.rows": users, "nodes.item.rows": items, "edges.user buys item.rows": table,
        "nodes.item.columns": {"price": "number"},
    }  # fmt: skip


def split_of(graph: Graph) -> khop.LinkSplit:
    return split_links_by_time(graph, BUYS, TimeCutOffs(micros(20), micros(25)), negatives=3)


def named(graph: Graph, ends: torch.Tensor, negatives: torch.Tensor) -> list[object]:
    """Return links and negatives by the users' own ids."""
    assert graph.folder is not None
    users, items = (khop.open_ids(graph.folder.path, t) for t in ("user", "item"))
    return [users.ids(ends[0]), items.ids(ends[1]), items.ids(negatives.flatten())]


@pytest.mark.core(2)
@pytest.mark.parametrize("changed", ["partitioned", "sorted", "saved", "subset"])
def test_cut_offs_ids_and_links_outlive_partitioning_sorting_and_saving(tmp_path: Path, changed: str) -> None:
    import_tables(spec(**many()), tmp_path / "shop")
    graph, out = open_graph(tmp_path / "shop"), tmp_path / "out"
    if changed == "partitioned":
        khop.partition_graph(tmp_path / "shop", out, 3, method="random")
    elif changed == "sorted":
        sort(tmp_path / "shop", out, "time")
    else:
        (graph if changed == "saved" else graph.only([BUYS, BACK])).save(out)
    other = open_graph(out)
    assert time_cut_offs(other) == TimeCutOffs(micros(20), micros(25))
    one, two = split_of(graph), split_of(other)
    for part in ("train", "val", "test"):
        links = [getattr(split, f"{part}_links") for split in (one, two)]
        none = torch.zeros(0, dtype=torch.int64)
        found = [
            named(of, link.edges[BUYS], link.negatives[BUYS] if link.negatives else none)
            for of, link in zip((graph, other), links, strict=True)
        ]
        assert found[0] == found[1]
        assert getattr(one, part).num_edges(BUYS) == getattr(two, part).num_edges(BUYS)


@pytest.mark.long
def test_a_saved_split_of_links_keeps_cut_offs_and_ids(shop: Graph, tmp_path: Path) -> None:
    khop.split_links(shop, BUYS, 1, 1).save(tmp_path / "split")
    part = khop.LinkSplit.open(tmp_path / "split").train
    assert time_cut_offs(part) == TimeCutOffs(micros(20), micros(25))
    assert khop.open_ids(tmp_path / "split" / "train", "item").ids([1]) == ["b"]


def test_candidates_exist_by_the_cut_off(tmp_path: Path) -> None:
    import_tables(spec(**many()), tmp_path / "shop")
    graph = open_graph(tmp_path / "shop")
    split = split_of(graph)
    csc, times = graph.csc(BUYS), graph.columns[BUYS]["time"]
    for links, limit in ((split.val_links, 20), (split.test_links, 25)):
        early = csc.destinations()[times < micros(limit)].unique()
        assert early.numel() < 30
        drawn = links.negatives[BUYS]
        assert torch.isin(drawn, early).all()
        assert drawn.unique().numel() > early.numel() // 2


def test_an_item_of_test_changes_no_training_batch_and_no_validation(tmp_path: Path) -> None:
    batches, validation = [], []
    for name, extra in (("before", False), ("after", True)):
        import_tables(spec(**many(extra=extra)), tmp_path / name)
        graph = open_graph(tmp_path / name)
        split = split_of(graph)
        sampler = khop.LinkSampler(split.train, [3, 2], negatives=khop.UniformNegatives(2, exact=True))
        loader = khop.Loader(sampler, split.train_links, 16, columns=["x"])
        batches.append([(batch.sample, dict(batch.columns["item"])) for batch in loader.epoch(0)])
        links = split.val_links
        validation.append((links.edges[BUYS].tolist(), links.negatives[BUYS].tolist()))
    assert len(batches[0]) == len(batches[1]) > 5
    for (sample, columns), (other, others) in zip(*batches, strict=True):
        assert_same(other, sample)
        assert columns["x"].equal(others["x"])
    assert validation[0] == validation[1]


def test_a_split_of_nodes_has_the_edges_that_it_may_use(shop: Graph) -> None:
    counts = {name: edges_of_split(shop, name).num_edges(BUYS) for name in ("train", "val", "test", "other")}
    assert counts == {"train": 5, "val": 6, "test": 7, "other": 7}
