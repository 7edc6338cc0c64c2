"""Specs proposed from files: they import as they are, and claim only what all rows say."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
from tests.importing.shop import events, items, users

from khop import import_tables
from khop.importing.guess import guess_spec

EXAMPLES = Path(__file__).parents[2] / "examples" / "import"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pq.write_table(users(), tmp_path / "users.parquet")
    (tmp_path / "items").mkdir()
    for part in range(2):
        csv.write_csv(items().slice(2 * part, 2), tmp_path / "items" / f"{part}.csv")
    pq.write_table(events(), tmp_path / "events.parquet")
    return tmp_path


ALL = ["users.parquet", "items/*.csv", "events.parquet"]


def test_a_proposal_names_keys_links_times_and_kinds(folder: Path) -> None:
    text = guess_spec(ALL, folder)
    spec = tomllib.loads(text)
    assert {name: (node["id"], node["files"]) for name, node in spec["nodes"].items()} == {
        "user": ("user_id", ["users.parquet"]),
        "item": ("item_id", ["items/*.csv"]),
    }
    assert (
        spec["nodes"]["item"]["columns"]
        == {"price": "number", "title": "text", "category": "category"} | (spec["nodes"]["item"]["columns"])
    )
    assert spec["edges"]["user event item"]["source"] == "user_id"
    assert spec["edges"]["user event item"]["time"] == "ts"
    assert "# 8 of 8 values are ids of item" in text
    assert "val = 2020-09-21T00:00:00Z, test = 2020-09-23T00:00:00Z" in text


def test_a_proposal_imports_as_it_is(folder: Path) -> None:
    (folder / "spec.toml").write_text(guess_spec(ALL, folder))
    done = import_tables(folder / "spec.toml", folder / "out")
    assert done.nodes == {"item": 4, "user": 3}
    assert done.edges["user event item"] == 8


def test_one_row_beyond_the_first_ones_takes_a_claim_back(folder: Path) -> None:
    """The last of many rows is no number, names a user twice, and is no time."""
    many = 140_000  # more rows than a piece has
    ids = [f"u{number}" for number in range(many)]
    table = pa.table({
        "user_id": [*ids, "u5"], "age": ["7"] * many + ["old"], "born": ["2020-01-01"] * many + ["once"],
    })  # fmt: skip
    csv.write_csv(table, folder / "people.csv")
    text = guess_spec(["people.csv"], folder)
    assert "people.csv: no unique column" in text
    csv.write_csv(table.slice(0, many), folder / "people.csv")
    spec = tomllib.loads(guess_spec(["people.csv"], folder))
    assert spec["nodes"]["people"] == {
        "files": ["people.csv"], "id": "user_id",
        "columns": {"age": "number", "born": {"kind": "date", "timezone": "UTC"}},
    }  # fmt: skip


def test_values_without_a_node_and_nulls_are_counted(folder: Path) -> None:
    table = pa.table({"user_id": ["u1", "u9", "u2"], "item_id": ["a", "b", None]})
    pq.write_table(table, folder / "likes.parquet")
    text = guess_spec([*ALL[:2], "likes.parquet"], folder)
    assert "# 2 of 3 values are ids of user" in text
    likes = tomllib.loads(text)["edges"]["user like item"]
    assert (likes["orphans"], likes["nulls"]) == ("drop", "drop")


def test_a_table_of_edges_alone_gives_types_without_tables(folder: Path) -> None:
    (folder / "spec.toml").write_text(guess_spec(["events.parquet"], folder))
    done = import_tables(folder / "spec.toml", folder / "out")
    assert done.nodes == {"user": 3, "item": 4}


def test_a_table_with_a_key_and_links_gives_several_edge_types(folder: Path) -> None:
    table = pa.table({"review_id": [1, 2, 3], "user_id": ["u1", "u2", "u3"], "note": ["ok", "bad", "ok"]})
    pq.write_table(table, folder / "reviews.parquet")
    (folder / "spec.toml").write_text(guess_spec(["users.parquet", "reviews.parquet"], folder))
    done = import_tables(folder / "spec.toml", folder / "out")
    assert done.edges == {"review user_id user": 3, "user user_id-of review": 3}


def test_integers_within_a_range_of_ids_are_no_link_by_themselves(folder: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2, 3, 4]}), folder / "shops.parquet")
    pq.write_table(pa.table({"id": [1, 2], "floors": [3, 4]}), folder / "houses.parquet")
    text = guess_spec(["shops.parquet", "houses.parquet"], folder)
    assert "edges" not in tomllib.loads(text)
    assert tomllib.loads(text)["nodes"]["house"]["columns"] == {"floors": "number"}


@pytest.mark.parametrize("name", ["shop", "citations"])
def test_tables_of_the_examples_are_understood(name: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, EXAMPLES / "make_tables.py", name, tmp_path], check=True, timeout=120)
    files = {"shop": ["users.parquet", "items/*.csv.gz", "events/*.parquet"], "citations": ["papers.parquet"]}
    (tmp_path / "spec.toml").write_text(guess_spec(files[name], tmp_path))
    done = import_tables(tmp_path / "spec.toml", tmp_path / "out")
    assert done.nodes == {"shop": {"item": 80, "user": 300}, "citations": {"paper": 400}}[name]


def test_a_table_may_link_to_its_own_rows(folder: Path) -> None:
    table = pa.table({"part_id": ["p1", "p2", "p3"], "part_of": [None, "p1", "p1"]})
    pq.write_table(table, folder / "parts.parquet")
    (folder / "spec.toml").write_text(guess_spec(["parts.parquet"], folder))
    done = import_tables(folder / "spec.toml", folder / "out")
    assert done.edges["part part_of part"] == 2


def test_many_categories_are_proposed_as_embeddings(folder: Path) -> None:
    count = 600
    table = pa.table(
        {
            "item_id": [f"i{n}" for n in range(count)],
            "shop": [f"shop{n % 290}" for n in range(count)],
            "name": [f"name{n}" for n in range(count)],
        }
    )
    pq.write_table(table, folder / "goods.parquet")
    text = guess_spec(["goods.parquet"], folder)
    columns = tomllib.loads(text)["nodes"]["good"]["columns"]
    assert columns == {"shop": {"kind": "category", "encoding": "embedding"}}
    assert "# 290 different values" in text
