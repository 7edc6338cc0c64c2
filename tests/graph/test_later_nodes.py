from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from data.tables.shop import spec, users
from khop import import_tables, open_folder
from khop.graph.node_ids import joined_nodes, later_ids


def test_later_nodes_are_found_or_follow_those_of_the_graph(tmp_path: Path) -> None:
    import_tables(spec(), tmp_path / "shop")
    rows = pa.table({"user_id": ["u8", "u9"], "age": [1.0, 2.0]})
    bought = pa.table({"user_id": ["u9", "u2"], "item_id": ["c", "a"], "ts": [5, 6]})
    edge = {"rows": bought, "source": "user_id", "destination": "item_id", "time": "ts", "unit": "s"}
    values = {
        "nodes": {"user": {"rows": rows, "id": "user_id"}, "item": {}},
        "edges": {"user buys item": edge},
    }
    import_tables(values, tmp_path / "later", encoders=tmp_path / "shop")
    base, later = open_folder(tmp_path / "shop"), open_folder(tmp_path / "later")
    places = joined_nodes(base, later)
    assert {t: of_type.tolist() for t, of_type in places.items()} == {"user": [3, 4, 1], "item": [2, 0]}
    assert later_ids(later, "user").strings() == ["u8", "u9", "u2"]  # type: ignore[union-attr]


def test_ids_that_are_not_stored_are_refused(tmp_path: Path) -> None:
    import_tables(spec(), tmp_path / "shop")
    values = {"nodes": {"user": {"rows": users().slice(0, 0), "id": "user_id", "ids": "none"}}}
    import_tables(values, tmp_path / "later", encoders=tmp_path / "shop")
    with pytest.raises(ValueError, match="ids of 'user' are not stored"):
        joined_nodes(open_folder(tmp_path / "shop"), open_folder(tmp_path / "later"))
