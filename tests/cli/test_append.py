"""`khop append` and `khop compact`, and all commands on a graph with new rows."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from cli.conftest import Ran
from cli.test_next_steps import follow
from cli.test_predict import LATER, RUN
from khop import import_tables, open_folder
from khop.cli.importing import ids_by_type
from support.later_shops import joined_tables, later_spec, later_tables, shop_spec, shop_tables

Command = Callable[..., Ran]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a graph and the files of the next day."""
    monkeypatch.chdir(tmp_path)
    import_tables(shop_spec(shop_tables()), "shop")
    found = later_tables()
    pyarrow.csv.write_csv(found["user"], "users.csv")
    pq.write_table(found["item"], "items.parquet")
    pq.write_table(found["event"], "events.parquet")
    Path("day.toml").write_text(LATER)
    return tmp_path / "shop"


@pytest.mark.long
def test_every_command_sees_the_new_rows(shop: Path, khop_command: Command) -> None:
    Path("run.toml").write_text(RUN)
    assert khop_command("train", "run.toml").code == 0
    before = open_folder(shop).fingerprint
    ran = khop_command("append", "shop", "day.toml")
    assert ran.code == 0, ran.stderr
    current = open_folder(shop)
    counts = "+3 user, +5 item, +40 user buys item, +40 item bought-by user"
    assert ran.stdout.splitlines()[0] == f"shop: snapshot {current.fingerprint[:16]}: {counts}"
    notes = [
        "item.brand: 1 rows with words or categories that are not in training",
        "Show it: khop info shop",
    ]
    assert ran.stdout.splitlines()[1:] == notes
    follow(khop_command, ran)
    assert khop_command("lookup", "shop", "user", "u32").stdout == "u32\t32\n"
    assert json.loads(khop_command("info", "shop", "--json").stdout)["nodes"][1]["count"] == 45
    assert khop_command("verify", "shop").stdout == "shop: no problems found\n"
    assert khop_command("evaluate", "run", "--json").code == 0
    assert khop_command("infer", "run", "--out", "all.parquet").code == 0
    assert pq.read_table("all.parquet")["id"].to_pylist()[-1] == "i44"
    more = later_spec({**later_tables(), "user": later_tables()["user"].slice(0, 0)})
    more["nodes"]["item"]["rows"] = later_tables()["item"].slice(0, 1).set_column(0, "item_id", [["i-next"]])
    import_tables(more, "tomorrow", encoders="shop")
    ran = khop_command("predict", "run", "--graph", "tomorrow", "--out", "new.parquet")
    assert ran.code == 0, ran.stderr
    assert pq.read_table("new.parquet")["id"].to_pylist() == ["i-next"]
    resumed = khop_command("train", "--resume", "run", "--epochs", "3")
    assert resumed.code == 2, "the snapshot is part of the fingerprint"
    assert "earlier snapshots are in GRAPH/snapshots" in resumed.stderr.replace("\n", " ")
    earlier = f"shop/snapshots/{before[:16]}"
    resumed = khop_command("train", "--resume", "run", "--epochs", "3", "--graph", earlier)
    assert resumed.code == 0, resumed.stderr


@pytest.mark.long
def test_a_run_on_a_snapshot_is_the_run_on_a_rebuild(shop: Path, khop_command: Command) -> None:
    assert khop_command("append", "shop", "day.toml").code == 0
    import_tables(shop_spec(joined_tables()), "whole")
    assert open_folder(shop).fingerprint == open_folder("whole").fingerprint
    Path("run.toml").write_text(RUN)
    scores = []
    for graph in ("shop", "whole"):
        ran = khop_command("train", "run.toml", "--graph", graph, "--out", f"run-{graph}", "--json")
        assert ran.code == 0, ran.stderr
        outcome = json.loads(ran.stdout)
        scores.append({name: value for name, value in outcome.items() if name not in ("run", "seconds")})
    assert scores[0] == scores[1]


def test_nodes_are_deleted_and_erased(shop: Path, khop_command: Command) -> None:
    Path("gone.txt").write_bytes(codecs.BOM_UTF8 + b"i3\r\n\r\ni4 \r\n")  # as spreadsheets write it
    ran = khop_command("append", "shop", "--delete", "user=u1", "--delete", "item=@gone.txt")
    assert ran.code == 0, ran.stderr
    assert "-1 user, -2 item" in ran.stdout
    assert khop_command("lookup", "shop", "user", "u1").code == 1
    ran = khop_command("compact", "shop")
    assert ran.stdout == "shop: now has a single snapshot. Show it: khop info shop\n"
    follow(khop_command, ran)
    assert sorted(path.name for path in shop.iterdir()) == ["edges", "graph.json", "import.json", "nodes"]
    assert khop_command("verify", "shop").code == 0


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("shop",), "give a spec of new rows, or the ids of nodes to delete"),
        (("shop", "--delete", "u1"), "--delete 'u1': give a node type and an id, such as user=u-4711"),
        (("shop", "--delete", "user=@none.txt"), "none.txt: no such file"),
        (("shop", "--delete", "user=nobody"), "no user has the id 'nobody'"),
        (("gone", "day.toml"), "gone: no such folder"),
        (("shop", "day.toml", "--split", "zz"), "split 'zz'"),
    ],
)
def test_bad_values_are_one_sentence(
    shop: Path, khop_command: Command, words: tuple[str, ...], problem: str
) -> None:
    ran = khop_command("append", *words)
    assert ran.code == 2
    assert problem in ran.stderr.replace("\n", " ")


def test_ids_are_collected_by_type() -> None:
    assert ids_by_type(["a=1", "b=x=y", "a=2"]) == {"a": ["1", "2"], "b": ["x=y"]}
