from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from data.tables.shop import TEST, VAL, at, events, spec
from khop import import_tables, open_graph
from khop.data.tables.edge_reader import Counted, EdgeReader, statistics_columns

EDGES = "edges.user buys item"


def test_orphans_are_summed_and_the_first_is_named() -> None:
    counted = Counted({3: (2, "b.csv, row 1"), 1: (1, "a.csv, row 9")}, {0: 4, 2: 1})
    assert (counted.num_orphans, sum(counted.nulls.values())) == (3, 5)
    with pytest.raises(ValueError, match="^a.csv, row 9; 3 edges have no node at an end"):
        counted.refuse_orphans()
    Counted().refuse_orphans()


def test_null_ends_are_left_out_and_counted(tmp_path: Path) -> None:
    table = events().set_column(0, "user_id", pa.array(["u1"] * 7 + [None]))
    done = import_tables(spec(**{f"{EDGES}.rows": table, f"{EDGES}.nulls": "drop"}), tmp_path / "out")
    assert done.edges["user buys item"] == 6
    assert done.notes[0] == "user buys item: left out 1 edge with a null source or destination"


def test_edges_have_columns_and_a_split(tmp_path: Path) -> None:
    table = events().append_column("price", pa.array([1.0, 3.0, 1.0, 9.0, 3.0, 1.0, 50.0, 70.0]))
    table = table.append_column("part", pa.array(["train"] * 6 + ["val", "test"]))
    changes = {
        f"{EDGES}.rows": table,
        f"{EDGES}.columns": {"price": "number"},
        f"{EDGES}.split": {"column": "part"},
    }
    import_tables(spec(**changes), tmp_path / "out")
    columns = open_graph(tmp_path / "out").columns["user", "buys", "item"]
    assert sorted(columns["split"].tolist()) == [0, 0, 0, 0, 0, 1, 2]
    training = columns["price"][columns["split"] == 0]
    assert training.abs().max() < 2  # statistics of training alone
    assert columns["price"].max() > 20


def test_edges_are_split_by_their_own_cut_offs(tmp_path: Path) -> None:
    table = events().append_column("price", pa.array([1.0, 3.0, 1.0, 9.0, 3.0, 1.0, 50.0, 70.0]))
    changes = {
        "rows": table,
        "columns": {"price": "number"},
        "split": {"time": {"val": at(5), "test": at(21)}},
    }
    import_tables(
        spec(splits=None, **{f"{EDGES}.{name}": of for name, of in changes.items()}), tmp_path / "out"
    )
    columns = open_graph(tmp_path / "out").columns["user", "buys", "item"]
    by_time = dict(zip(columns["time"].tolist(), columns["split"].tolist(), strict=True))
    assert [part for _, part in sorted(by_time.items())] == [0, 0, 0, 1, 1, 2, 2]
    training = columns["price"][columns["split"] == 0]
    assert training.mean().abs() < 1e-6  # statistics of training alone
    with pytest.raises(
        ValueError, match=r'edges."user buys item".split.time: the edges have no times; give time'
    ):
        import_tables(spec(**{f"{EDGES}.split": changes["split"], f"{EDGES}.time": None}), tmp_path / "no")


def test_several_types_of_one_table(tmp_path: Path) -> None:
    table = {
        "rows": events(), "time": "ts",
        "edges": [
            {"type": "user buys item", "source": "user_id", "destination": "item_id", "where": "kind = 'buy'"},
            {"type": "user views item", "source": "user_id", "destination": "item_id", "where": "kind = 'view'"},
        ],
    }  # fmt: skip
    done = import_tables(spec(edges=None, edges_from=[table]), tmp_path / "out")
    assert done.edges == {"user buys item": 7, "user views item": 1}


def reviews(**changes: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return a spec of items without times and reviews with times; the last review is of validation."""
    days = [at(1), at(2), at(21)]
    table = pa.table(
        {"review": ["r1", "r2", "r3"], "ts": days, "item": ["a", "b", "c"], "stars": [1.0, 3.0, 90.0]}
    )
    items = pa.table({"item": ["a", "b", "c"], "price": [1.0, 3.0, 90.0]})
    ends = {"source": "review", "destination": "item"} | changes
    name = " ".join([ends["source"], "about", ends["destination"]])
    return {
        "splits": {"time": {"val": VAL, "test": TEST}},
        "nodes": {
            "item": {"rows": items, "id": "item", "columns": {"price": "number"}},
            "review": {"rows": table, "id": "review", "time": "ts"},
        },
        "edges": {name: {"rows": table, "columns": {"stars": "number"}, "orphans": "drop"} | ends},
    }


@pytest.mark.parametrize("ends", [("review", "item"), ("item", "review")])
def test_statistics_see_no_edge_of_a_node_after_validation_begins(
    tmp_path: Path, ends: tuple[str, str]
) -> None:
    import_tables(reviews(source=ends[0], destination=ends[1]), tmp_path / "out")
    columns = open_graph(tmp_path / "out").columns
    assert columns[ends[0], "about", ends[1]]["stars"].tolist() == [-1, 1, 88]
    assert columns["item"]["x"].flatten().tolist() == [-1, 1, 88]


def test_statistics_see_no_edge_that_is_left_out(tmp_path: Path) -> None:
    values = reviews()
    values["nodes"]["item"]["where"] = "item <> 'b'"
    import_tables(values, tmp_path / "out")
    columns = open_graph(tmp_path / "out").columns
    assert columns["review", "about", "item"]["stars"].tolist() == [0, 89]


@pytest.mark.core(2)
@pytest.mark.parametrize(
    ("changes", "ends"),
    [
        ({}, []),
        ({"orphans": "drop"}, ["user_id", "item_id"]),
        ({"nulls": "drop"}, ["user_id", "item_id"]),
        ({"split": {"ratio": [1, 0, 0]}}, ["user_id", "item_id"]),
    ],
)
def test_ends_are_read_for_statistics_only_if_they_decide_on_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], ends: list[str]
) -> None:
    asked: list[list[str]] = []

    def noted(edges: EdgeReader) -> list[str]:
        asked.append(statistics_columns(edges))
        return asked[-1]

    monkeypatch.setattr("khop.data.tables.edge_reader.statistics_columns", noted)
    table = events().append_column("price", pa.array([1.0, 3.0, 1.0, 9.0, 3.0, 1.0, 5.0, 7.0]))
    given = {"rows": table, "columns": {"price": "number"}, **changes}
    import_tables(spec(**{f"{EDGES}.{name}": value for name, value in given.items()}), tmp_path / "out")
    assert asked == [[*ends, "ts", "price"]]
