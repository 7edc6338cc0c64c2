"""Later data as rows to add: numbers of the joined graph, new nodes alone, edges in their order."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.importing.shop import TYPE, at, spec

from khop import import_tables, open_folder
from khop.graph.added_rows import added_rows
from khop.kernels.id_table import StringKeys

BUYS, BACK = ("user", "buys", "item"), ("item", "bought-by", "user")


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    import_tables(spec(), tmp_path / "shop")
    bought = {"user_id": ["u8", "u2", "u8"], "item_id": ["d", "a", "a"]}
    times = pa.array([at(day) for day in (29, 30, 28)], TYPE)
    edge = {"rows": pa.table({**bought, "ts": times}), "source": "user_id", "destination": "item_id"}
    users = {"rows": pa.table({"user_id": ["u8"], "age": [30.0]}), "id": "user_id"}
    values = {"nodes": {"user": users, "item": {}}, "edges": {"user buys item": edge}}
    import_tables(values, tmp_path / "later", encoders=tmp_path / "shop")
    return tmp_path / "shop", tmp_path / "later"


def test_nodes_of_the_graph_keep_their_numbers(folders: tuple[Path, Path]) -> None:
    base, later = map(open_folder, folders)
    new = added_rows(base, later)
    users, items = new.nodes["user"], new.nodes["item"]
    assert (users.count, items.count, new.num_nodes("user"), new.num_nodes("other")) == (1, 0, 1, 0)
    assert isinstance(users.ids, StringKeys)
    assert users.ids.strings() == ["u8"]
    assert users.columns["x"].tolist() == [[0.0]]
    buys = new.edges[BUYS]
    found = sorted(
        zip(buys.positions.tolist(), buys.sources.tolist(), buys.destinations.tolist(), strict=True)
    )
    assert found == [(0, 3, 3), (1, 1, 0), (2, 3, 0)], "in the order of the table"
    assert len(buys) == len(new.edges[BACK]) == 3
    times = dict(zip(buys.positions.tolist(), buys.columns["time"].tolist(), strict=True))
    assert [times[i] for i in range(3)] == [int(at(day).timestamp()) * 10**6 for day in (29, 30, 28)]


def test_a_graph_is_no_later_data(folders: tuple[Path, Path]) -> None:
    base = open_folder(folders[0])
    with pytest.raises(ValueError, match="is no later data"):
        added_rows(base, base)
