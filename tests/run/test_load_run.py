"""A run that was trained by the command, loaded in Python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import khop
from khop.cli.main import run
from support.later_shops import later_spec, later_tables, shop_spec, shop_tables

SETTINGS = """
    graph = "{graph}"
    out = "{out}"
    compute_threads = 1
    task = {{ kind = "node-classification", target = "item", label = "label" }}
    sampler = {{ fanouts = [4, 3] }}
    model = {{ hidden = 8 }}
    training = {{ epochs = 2, batch_size = 8 }}
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    khop.import_tables(shop_spec(shop_tables()), folder / "shop")
    (folder / "run.toml").write_text(SETTINGS.format(graph=folder / "shop", out=folder / "run"))
    with pytest.raises(SystemExit) as left:
        run(["train", str(folder / "run.toml")])
    assert not left.value.code
    return folder / "run"


def tables(**changes: Any) -> dict[Any, Any]:  # noqa: ANN401
    found = later_tables()
    return {"user": found["user"], "item": found["item"], "user buys item": found["event"], **changes}


@pytest.mark.long
def test_tables_give_the_predictions_of_their_folder(trained: Path, tmp_path: Path) -> None:
    khop.import_tables(later_spec(later_tables()), tmp_path / "later", encoders=trained)
    loaded = khop.load_run(trained)
    of_folder, of_tables = loaded.predict(tmp_path / "later"), loaded.predict(tables())
    assert of_folder.table.equals(of_tables.table)
    assert of_tables.table["id"].to_pylist() == later_tables()["item"]["item_id"].to_pylist()
    assert of_tables.notes == ("item.brand: 1 rows with words or categories that are not in training",)


@pytest.mark.long
def test_a_run_on_embedded_categories_predicts_later_tables(tmp_path: Path) -> None:
    spec = shop_spec(shop_tables())
    spec["nodes"]["item"]["columns"]["brand"] = {"kind": "category", "encoding": "embedding"}
    khop.import_tables(spec, tmp_path / "shop")
    (tmp_path / "run.toml").write_text(SETTINGS.format(graph=tmp_path / "shop", out=tmp_path / "run"))
    with pytest.raises(SystemExit) as left:
        run(["train", str(tmp_path / "run.toml")])
    assert not left.value.code
    khop.import_tables(later_spec(later_tables()), tmp_path / "later", encoders=tmp_path / "run")
    loaded = khop.load_run(tmp_path / "run")
    of_folder, of_tables = loaded.predict(tmp_path / "later"), loaded.predict(tables())
    assert of_folder.table.equals(of_tables.table)
    assert of_tables.notes == ("item.brand: 1 rows with words or categories that are not in training",)


def test_the_weights_are_those_of_the_checkpoint(trained: Path) -> None:
    fresh = khop.load_run(trained, checkpoint="last", device="cpu").predict(tables()).table
    records = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    assert len(records) == 2
    assert fresh.num_rows == len(later_tables()["item"])


def test_tables_of_pandas_and_files_serve_too(trained: Path, tmp_path: Path) -> None:
    loaded, found = khop.load_run(trained), later_tables()
    pq.write_table(found["event"], tmp_path / "events.parquet")
    events = tmp_path / "events.parquet"
    frames = {"user": found["user"].to_pandas(), ("user", "buys", "item"): events, "item": found["item"]}
    assert isinstance(frames["user"], pd.DataFrame)
    assert loaded.predict(frames).table.equals(loaded.predict(tables()).table)


@pytest.mark.long
def test_unknown_ends_are_left_out_and_counted(trained: Path) -> None:
    event = later_tables()["event"]
    stray = event.slice(0, 2).set_column(0, "user_id", pa.array(["who", "who"]))
    more = pa.concat_tables([event, stray])
    loaded = khop.load_run(trained)
    found = loaded.predict(tables(**{"user buys item": more}))
    assert found.notes[0] == "user buys item: left out 2 edges with an unknown source or destination"
    assert found.table.equals(loaded.predict(tables()).table)


@pytest.mark.parametrize(
    ("later", "message"),
    [
        ({}, "later is empty: give tables of new nodes"),
        ({"shop": later_tables()["user"]}, "'shop': .* has no table of this type; there are user, item"),
        ({"user buys shop": later_tables()["event"]}, "'user buys shop': .* has no table of this type"),
        (5, "later 5: must be a path"),
        (
            {"item": later_tables()["item"].drop_columns(["price"])},
            "no column 'price' in the table of nodes.item",
        ),
        ({"item": shop_tables()["item"]}, "nodes.item.id is 'i0', a node of"),
    ],
    ids=str,
)
def test_bad_tables_are_refused(trained: Path, later: Any, message: str) -> None:  # noqa: ANN401
    with pytest.raises(ValueError, match=message):
        khop.load_run(trained).predict(later)


def test_bad_arguments_are_refused(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a run folder"):
        khop.load_run(tmp_path)
    with pytest.raises(ValueError, match=r"allow_code 'package': must be a list, as \['package'\]"):
        khop.load_run(trained, "package")
    with pytest.raises(ValueError, match="checkpoint 'first': must be one of best, last"):
        khop.load_run(trained, checkpoint="first")
