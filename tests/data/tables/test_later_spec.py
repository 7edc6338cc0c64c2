"""Later data: tables encoded with the encoders of an imported graph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pytest
import torch

from data.tables.shop import TYPE, at, events, items, spec, users
from khop import import_tables, open_graph, open_ids
from khop.data.tables.pipeline import Imported
from khop.graph.verify import verify_folder

BUYS, BACK = ("user", "buys", "item"), ("item", "bought-by", "user")


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    labels = {"nodes.item.label": "category", "nodes.item.split": {"ratio": [1.0, 0.0, 0.0]}}
    import_tables(spec(**labels), tmp_path / "shop")
    return tmp_path / "shop"


def new_users() -> pa.Table:
    return pa.table({"user_id": ["u8", "u9"], "age": [30.0, 1e9]})


def new_items() -> pa.Table:
    return pa.table(
        {
            "item_id": ["n"],
            "price": [2.0],
            "title": ["unheard hat"],
            "brand": ["unheard"],
            "category": ["unheard"],
        }
    )


def new_events(*rows: tuple[str, str, int]) -> pa.Table:
    names, columns = ("user_id", "item_id", "ts"), list(zip(*rows, strict=True))
    times = pa.array([at(day) for day in columns[2]], TYPE)
    return pa.table(dict(zip(names, (columns[0], columns[1], times), strict=True)))


def later(shop: Path, out: Path, *rows: tuple[str, str, int], **changes: Any) -> Imported:  # noqa: ANN401
    """Import new users, and events of them with items of the graph."""
    values: dict[str, Any] = {
        "nodes": {"user": {"rows": new_users(), "id": "user_id"}, "item": {}},
        "edges": {
            "user buys item": {
                "rows": new_events(*(rows or (("u8", "b", 29), ("u9", "d", 28)))),
                "source": "user_id", "destination": "item_id",
            }
        },
    }  # fmt: skip
    for path, value in changes.items():
        place, *names = path.split("__")
        at_place = values[place]
        for name in names[:-1]:
            at_place = at_place[name.replace("_", " ") if place == "edges" else name]
        at_place[names[-1]] = value
    return import_tables(values, out, encoders=shop)


def document(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "import.json").read_text())
    return found


def test_the_same_rows_have_the_same_numbers(shop: Path, tmp_path: Path) -> None:
    """Rows as the graph has them, by other ids: features do not depend on the other rows of the table."""
    renamed = items().set_column(0, "item_id", pa.array([f"n{i}" for i in range(4)]))
    table = pa.concat_tables([renamed, new_items()])
    values = {"nodes": {"item": {"rows": table, "id": "item_id", "label": "category"}}}
    done = import_tables(values, tmp_path / "new", encoders=shop)
    assert verify_folder(tmp_path / "new") == []
    base, new = open_graph(shop), open_graph(tmp_path / "new")
    torch.testing.assert_close(new.columns["item"]["x"][:4], base.columns["item"]["x"], rtol=0, atol=0)
    assert new.columns["item"]["label"].tolist() == [*base.columns["item"]["label"].tolist(), -1]
    assert new.columns["item"]["x"][4, 1] == 1, "the number of other categories"
    assert done.notes == (
        "item.brand: 1 rows with words or categories that are not in training",
        "item.title: 2 rows with words or categories that are not in training",
        "item.label: 1 labels of classes that are not in training",
    )


def test_the_record_has_the_same_encoders(shop: Path, tmp_path: Path) -> None:
    later(shop, tmp_path / "new")
    base, new = document(shop), document(tmp_path / "new")
    assert new["nodes"]["user"] == base["nodes"]["user"]
    assert new["edges"] == base["edges"]
    assert "time_split" not in new
    assert new["later"]["rows"] == {"user": 2}


def test_edges_name_nodes_of_the_graph(shop: Path, tmp_path: Path) -> None:
    done = later(shop, tmp_path / "new", ("u8", "b", 29), ("u9", "d", 28), ("u1", "b", 3))
    assert (done.nodes, done.notes) == ({"user": 3, "item": 2}, ())
    assert open_ids(tmp_path / "new", "user").ids([0, 1, 2]) == ["u8", "u9", "u1"]
    assert open_ids(tmp_path / "new", "item").ids([0, 1]) == ["b", "d"]
    graph = open_graph(tmp_path / "new")
    assert graph.schema.reverse_of == {BUYS: BACK, BACK: BUYS}
    assert graph.csc(BUYS).indices.tolist() == [0, 2, 1]
    assert graph.split_names == ()


def test_unknown_ends_are_orphans(shop: Path, tmp_path: Path) -> None:
    rows = (("u8", "b", 29), ("u8", "zz", 28), ("zz", "a", 27))
    with pytest.raises(ValueError, match=r"item_id is 'zz', and no 'item' has this id; 2 edges have no node"):
        later(shop, tmp_path / "new", *rows)
    done = later(shop, tmp_path / "new", *rows, edges__user_buys_item__orphans="drop")
    assert done.nodes == {"user": 2, "item": 2}, "the nodes of the graph that edges name"
    assert done.notes == ("user buys item: left out 2 edges with an unknown source or destination",)


def test_a_type_without_a_table_takes_new_ids_of_edges(tmp_path: Path) -> None:
    bare = spec(**{"nodes.item": {}})
    import_tables(bare, tmp_path / "shop")
    done = later(tmp_path / "shop", tmp_path / "new", ("u8", "b", 29), ("u8", "zz", 28))
    assert done.nodes == {"user": 2, "item": 2}


def test_the_spec_of_the_graph_serves_for_later_tables(shop: Path, tmp_path: Path) -> None:
    """Another table under each name, and all else as it was."""
    rows = events().slice(0, 1).set_column(0, "user_id", pa.array(["u8"]))
    changes = {"nodes.user.rows": new_users(), "edges.user buys item.rows": rows, "nodes.item": {}}
    done = import_tables(spec(**changes), tmp_path / "new", encoders=shop)
    assert done.notes == ("splits: rows of later data are not in splits",)


def test_files_are_read_with_the_recorded_columns(tmp_path: Path) -> None:
    renamed = users().rename_columns(["key", "Age in years"])
    columns = {"age": {"kind": "number", "column": "Age in years"}}
    import_tables(
        spec(**{"nodes.user": {"rows": renamed, "id": "key", "columns": columns}}), tmp_path / "shop"
    )
    pa.csv.write_csv(new_users().rename_columns(["key", "Age in years"]), tmp_path / "users.csv")
    (tmp_path / "new.toml").write_text('[nodes.user]\nfiles = ["users.csv"]\nid = "key"\n')
    import_tables(tmp_path / "new.toml", tmp_path / "new", encoders=tmp_path / "shop")
    assert open_graph(tmp_path / "new").columns["user"]["x"].flatten().tolist() == [0.0, pytest.approx(1e8)]


def test_raw_columns_and_times_keep_their_types(tmp_path: Path) -> None:
    """A CSV file, of text, for a graph from typed tables."""
    table = users().append_column("rank", pa.array([1, 2, 3], pa.int16()))
    table = table.append_column("since", pa.array([at(1), at(2), at(3)], TYPE))
    raw = {"nodes.user.rows": table, "nodes.user.columns.rank": "raw", "nodes.user.time": "since"}
    import_tables(spec(**raw), tmp_path / "shop")
    text = "user_id,age,rank,since\nu8,30,7,2020-09-04T00:00:00Z\n"
    (tmp_path / "users.csv").write_text(text)
    (tmp_path / "new.toml").write_text('[nodes.user]\nfiles = ["users.csv"]\nid = "user_id"\n')
    import_tables(tmp_path / "new.toml", tmp_path / "new", encoders=tmp_path / "shop")
    columns = open_graph(tmp_path / "new").columns["user"]
    assert columns["rank"].dtype == torch.int16
    assert columns["rank"].tolist() == [7]
    assert columns["time"].tolist() == [round(at(4).timestamp() * 10**6)]
    (tmp_path / "users.csv").write_text(text.replace("7", "70000"))
    with pytest.raises(
        ValueError, match=r"users.csv, row 1: nodes.user.columns.rank is 70000.0: beyond int16"
    ):
        import_tables(tmp_path / "new.toml", tmp_path / "other", encoders=tmp_path / "shop")


def test_times_of_nodes_have_the_unit_that_the_graph_found(tmp_path: Path) -> None:
    """The first rows of the graph show that the numbers are milliseconds; those of later rows do not."""
    since = pa.array([round(at(day).timestamp() * 1000) for day in (1, 2, 3)])
    timed = {"nodes.user.rows": users().append_column("since", since), "nodes.user.time": "since"}
    with pytest.warns(UserWarning, match="nodes.user.time: whole numbers are taken as ms since 1970"):
        import_tables(spec(**timed), tmp_path / "shop")
    assert document(tmp_path / "shop")["nodes"]["user"]["time"]["unit"] == "ms"
    rows = new_users().append_column("since", pa.array([5, 6]))
    later = {"nodes": {"user": {"rows": rows, "id": "user_id"}}}
    import_tables(later, tmp_path / "new", encoders=tmp_path / "shop")
    assert open_graph(tmp_path / "new").columns["user"]["time"].tolist() == [5000, 6000]  # in us, as edges


@pytest.mark.core(4)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes__shop": {}}, r"nodes.shop: .*shop has no such node type; there are user, item"),
        ({"nodes__user__columns": {"height": "number"}}, r"columns.height: the encoders of .* have no such"),
        ({"nodes__user__columns": {"age": "category"}}, r'age: is a "category", but .* have a "number"'),
        (
            {"nodes__user__columns": {"age": {"kind": "number", "scale": "log"}}},
            r"age.scale is 'log', and the encoders of .* have 'standard'; leave it out",
        ),
        ({"nodes__user__time": "age"}, r"nodes.user.time is 'age': these rows have no times"),
        ({"nodes__user__label": "age"}, r"nodes.user.label: .* has no label of this type"),
        ({"edges__user_buys_item__reverse": "sold"}, r"reverse is 'sold': .* has the reverse 'bought-by'"),
        ({"nodes__user__rows": users()}, r"row 1: nodes.user.id is 'u1', a node of .*; tables of later data"),
        (
            {"nodes__user__rows": pa.table({"user_id": ["u8"], "size": [1]})},
            r"nodes.user.columns.age: no column 'age' in the table of nodes.user",
        ),
        (
            {"nodes__user__rows": pa.table({"user_id": ["u8", "u9"], "age": ["3", "old"]})},
            r"nodes.user.columns.age is 'old': not a number",
        ),
    ],
    ids=str,
)
def test_tables_that_do_not_fit_are_refused(
    shop: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        later(shop, tmp_path / "new", **changes)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("user views item", "has no such edge type; did you mean user buys item"),
        ("item bought-by user", "is the reverse of 'user buys item' in .*; give that type"),
    ],
)
def test_edge_types_that_the_graph_lacks_are_refused(
    shop: Path, tmp_path: Path, name: str, message: str
) -> None:
    edge = {"rows": new_events(("u8", "b", 3)), "source": "user_id", "destination": "item_id"}
    values = {"nodes": {"user": {}, "item": {}}, "edges": {name: edge}}
    with pytest.raises(ValueError, match=message):
        import_tables(values, tmp_path / "new", encoders=shop)


def test_ids_that_the_graph_does_not_store_are_needed(tmp_path: Path) -> None:
    import_tables(spec(**{"nodes.item.ids": "none"}), tmp_path / "shop")
    with pytest.raises(ValueError, match=r"ids of 'item' are not stored"):
        later(tmp_path / "shop", tmp_path / "new")


def test_later_data_lend_no_encoders(shop: Path, tmp_path: Path) -> None:
    later(shop, tmp_path / "new")
    with pytest.raises(ValueError, match=r"new: is later data; give the run or the graph"):
        later(tmp_path / "new", tmp_path / "newer")
