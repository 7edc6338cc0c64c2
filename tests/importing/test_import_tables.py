from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.importing.shop import events, items, spec, users

from khop import import_tables, open_graph

TOML = """
[nodes.user]
files = ["users.parquet"]
id = "user_id"
[nodes.item]
files = ["items.parquet"]
id = "item_id"
[edges."user buys item"]
files = ["events.parquet"]
source = "user_id"
destination = "item_id"
time = "ts"
"""


def test_paths_are_relative_to_the_spec(tmp_path: Path) -> None:
    for name, table in (("users", users()), ("items", items()), ("events", events())):
        pq.write_table(table, tmp_path / f"{name}.parquet")
    (tmp_path / "shop.toml").write_text(TOML)
    done = import_tables(tmp_path / "shop.toml", tmp_path / "out", threads=2)
    assert str(done) == f"{tmp_path / 'out'}: 3 user, 4 item; 8 user buys item"
    assert open_graph(tmp_path / "out").schema.node_types == ("user", "item")


@pytest.mark.parametrize(("argument", "value"), [("threads", 0), ("memory", 0), ("out", 3), ("spec", 3)])
def test_arguments_are_checked(tmp_path: Path, argument: str, value: object) -> None:
    arguments = {"spec": spec(), "out": tmp_path / "out", argument: value}
    with pytest.raises(ValueError, match=argument):
        import_tables(**arguments)  # type: ignore[arg-type]
