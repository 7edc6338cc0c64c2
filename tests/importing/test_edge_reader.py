from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.importing.shop import events, spec

from khop import import_tables, open_graph
from khop.importing.edge_reader import Counted

EDGES = "edges.user buys item"


def test_orphans_are_summed_and_the_first_is_named() -> None:
    counted = Counted({3: (2, "b.csv, row 1"), 1: (1, "a.csv, row 9")}, {0: 4, 2: 1})
    assert (counted.num_orphans, counted.num_nulls) == (3, 5)
    with pytest.raises(ValueError, match="^a.csv, row 9; 3 edges have no node at an end"):
        counted.refuse_orphans()
    Counted().refuse_orphans()


def test_null_ends_are_left_out_and_counted(tmp_path: Path) -> None:
    table = events().set_column(0, "user_id", pa.array(["u1"] * 7 + [None]))
    done = import_tables(spec(**{f"{EDGES}.rows": table, f"{EDGES}.nulls": "drop"}), tmp_path / "out")
    assert done.edges["user buys item"] == 6
    assert done.notes[0] == "user buys item: 1 edges with a null end left out"


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
