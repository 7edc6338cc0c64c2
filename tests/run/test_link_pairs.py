"""Pairs of ids are read from tables as edges are, and found in the graph and in later data."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
import torch

from data.tables.shop import spec
from khop import import_tables
from khop.run.load_run import Pairs
from khop.run.predict import JoinedRun
from support.later_shops import ITEMS, USERS, later_spec, later_tables, shop_spec, shop_tables
from support.typed_runs import prepared

BUYS = ("user", "buys", "item")
PAIRS = pa.table({"user_id": ["u31", "u2", "who"], "item_id": ["i42", "i40", "i1"]})


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> JoinedRun:
    folder = tmp_path_factory.mktemp("pairs")
    import_tables(shop_spec(shop_tables()), folder / "shop")
    import_tables(later_spec(later_tables()), folder / "later", encoders=folder / "shop")
    task = {"kind": "link-prediction", "target": "user buys item"}
    settings = {"task": task, "sampler": {"fanouts": [3]}, "model": {"hidden": 4}}
    return JoinedRun.of(prepared(folder / "shop", **settings), folder / "later")


@pytest.mark.long
def test_ids_are_found_in_the_graph_and_after_it(joined: JoinedRun) -> None:
    (rows,) = Pairs.open(PAIRS, BUYS, joined)
    users, items = rows.nodes
    assert users.tolist() == [USERS + 1, 2, -1]
    assert items.tolist() == [ITEMS + 2, ITEMS, 1]
    assert rows.ids[0].to_pylist() == PAIRS["user_id"].to_pylist()
    alone = JoinedRun.of(joined.run, None)
    (rows,) = Pairs.open(PAIRS.to_pandas(), BUYS, alone)
    assert torch.cat(rows.nodes).tolist() == [-1, 2, -1, -1, -1, 1]


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (PAIRS.select(["user_id"]), r"pairs: no column 'item_id' in the table of pairs"),
        (
            PAIRS.set_column(0, "user_id", pa.array(["u1", None, "u2"])),
            r"the table of pairs, row 2: pairs: user_id is null",
        ),
        ("gone.parquet", r"pairs.files: gone.parquet: no such file"),
        (5, r"pairs: rows is of type int: give a pandas, polars or Arrow table"),
    ],
    ids=["no column", "null", "no file", "no table"],
)
def test_bad_input_is_one_sentence(joined: JoinedRun, pairs: object, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        list(Pairs.open(pairs, BUYS, joined))
    assert "\n" not in str(caught.value)


def test_a_graph_without_a_recorded_table_or_ids_is_refused(tmp_path: Path) -> None:
    import_tables(spec(**{"nodes.user.ids": "none"}), tmp_path / "shop")
    task = {"kind": "link-prediction", "target": "user buys item"}
    settings = {"task": task, "links": {"split": "random", "val": 0.2, "test": 0.2, "eval_negatives": 1}}
    run = prepared(tmp_path / "shop", **settings, sampler={"fanouts": [3]}, model={"hidden": 4})
    joined = JoinedRun.of(run, None)
    with pytest.raises(ValueError, match=r"ids of 'user' are not stored"):
        Pairs.open(PAIRS, BUYS, joined)
    with pytest.raises(ValueError, match=r"records no table of 'user likes item'"):
        Pairs.open(PAIRS, ("user", "likes", "item"), joined)
