""""""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.tables.shop import TYPE, at, events, items, spec, users
from khop import import_tables, open_folder, open_graph, open_ids
from khop.api.open_graph import Graph
from khop.data.tables.import_state import ImportState, check_file_names, read_ids
from khop.data.tables.pipeline import run_import
from khop.data.tables.read_spec import checked_spec
from khop.data.tables.source import SourceFolder
from khop.graph.verify import verify_folder

EDGES = "edges.user buys item"


BUYS, BACK = ("user", "buys", "item"), ("item", "bought-by", "user")


def imported(tmp_path: Path, name: str = "out", threads: int = 1, **changes: Any) -> Graph:  # noqa: ANN401
    import_tables(spec(**changes), tmp_path / name, threads=threads)
    assert verify_folder(tmp_path / name) == []
    return open_graph(tmp_path / name)


def document(graph: Graph) -> dict[str, Any]:
    assert graph.folder is not None
    found: dict[str, Any] = json.loads((graph.folder.path / "import.json").read_text())
    return found


def pairs(graph: Graph, edge_type: tuple[str, str, str] = BUYS) -> list[tuple[int, int]]:
    csc = graph.folder.csc(edge_type)  # type: ignore[union-attr]
    return list(zip(csc.indices.tolist(), csc.destinations().tolist(), strict=True))


def with_rows(table: pa.Table, **columns: list[Any]) -> pa.Table:
    return pa.concat_tables([table, pa.table(columns, schema=table.schema)])


def test_ids_follow_the_rows_and_edges_their_times(tmp_path: Path) -> None:
    graph = imported(tmp_path)
    assert [graph.folder.num_nodes(t) for t in ("user", "item")] == [3, 4]  # type: ignore[union-attr]
    assert pairs(graph) == [(1, 0), (0, 0), (0, 1), (2, 1), (1, 2), (0, 2), (2, 3)]
    times = graph.columns[BUYS]["time"]
    assert times.tolist() == [round(at(day).timestamp() * 10**6) for day in (1, 3, 2, 9, 5, 21, 26)]
    assert sorted((b, a) for a, b in pairs(graph, BACK)) == sorted(pairs(graph))
    assert graph.schema.reverse_of == {BUYS: BACK, BACK: BUYS}


def test_ids_are_kept_in_the_folder_unless_the_spec_keeps_none(tmp_path: Path) -> None:
    imported(tmp_path, **{"nodes.user.ids": "none"})
    items_of = open_ids(tmp_path / "out", "item")
    assert items_of.rows(["d", "e", "a"]).tolist() == [3, -1, 0]
    assert items_of.ids([1, 2]) == ["b", "c"]
    with pytest.raises(ValueError, match="ids of 'user' are not stored"):
        open_ids(tmp_path / "out", "user")


def test_features_have_the_statistics_of_training(tmp_path: Path) -> None:
    graph = imported(tmp_path)
    price = graph.columns["item"]["x"][:, 0].numpy()
    training = np.array([1.0, 2.0, 3.0])  # d is bought in test alone
    np.testing.assert_allclose(price, (np.array([1, 2, 3, 6]) - training.mean()) / training.std(), rtol=1e-6)
    age = graph.columns["user"]["x"][:, 0].numpy()
    np.testing.assert_allclose(age, [-1, 1, 0])
    (_, brand, title) = document(graph)["nodes"]["item"]["columns"]
    assert brand["categories"] == ["x", "y"]
    assert title["texts"] == 3


def test_what_comes_after_validation_changes_nothing_of_training(tmp_path: Path) -> None:
    """A word, a category, a price, a class and an edge after `val`."""
    before = imported(tmp_path, "before")
    more = with_rows(
        items(), item_id=["new"], price=[1e6], title=["unheard words"], brand=["z"], category=["boat"]
    )
    after = imported(
        tmp_path, "after",
        **{
            "nodes.item.rows": more,
            f"{EDGES}.rows": with_rows(events(), user_id=["u1"], item_id=["new"], kind=["buy"], ts=[at(22)]),
            "nodes.item.label": "category", "nodes.item.split": {"ratio": [1.0, 0.0, 0.0]},
        },
    )  # fmt: skip
    first, second = document(before), document(after)
    assert first["nodes"]["item"]["columns"] == second["nodes"]["item"]["columns"]
    assert first["nodes"]["user"] == second["nodes"]["user"]
    assert first["time_split"] == second["time_split"]
    assert second["nodes"]["item"]["label"]["classes"] == ["hat", "shoe"]
    assert after.columns["item"]["x"][:4].equal(before.columns["item"]["x"])
    val = first["time_split"]["val"]
    for edge_type in (BUYS, BACK):
        kept = [
            [
                pair
                for pair, time in zip(pairs(graph, edge_type), graph.columns[edge_type]["time"], strict=True)
                if time < val
            ]
            for graph in (before, after)
        ]
        assert kept[0] == kept[1]


def test_threads_row_groups_files_and_memory_change_no_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random, seen = np.random.default_rng(1), []
    buyers, things = (random.integers(2000, size=9000) for _ in range(2))
    days = pa.array([at(1 + day) for day in random.integers(28, size=9000).tolist()], TYPE)
    table = pa.table({"user_id": [f"u{n}" for n in buyers], "item_id": [f"{n}" for n in things], "ts": days})

    def noted(work: ImportState) -> None:
        read_ids(work)
        seen.append({node_type: of_type.table.is_spilled for node_type, of_type in work.ids.items()})

    monkeypatch.setattr("khop.data.tables.pipeline.read_ids", noted)
    fingerprints = set()
    budgets = [(100_000, 700, 1, 9000), (1_000_000, 64, 4, 9000), (64_000_000, 9000, 2, 1230)]
    for number, (memory, group, threads, cut) in enumerate(budgets):
        folder = tmp_path / str(number)
        folder.mkdir()
        for part, first in enumerate(range(0, len(table), cut)):
            pq.write_table(table.slice(first, cut), folder / f"{part:03d}.parquet", row_group_size=group)
        changes = {"rows": None, "files": [f"{number}/*.parquet"], "where": None, "orphans": "add"}
        values = spec(**{f"{EDGES}.{name}": of for name, of in changes.items()})
        run_import(
            checked_spec(values, "spec"), tmp_path / f"out{number}", SourceFolder(tmp_path, {}),
            threads=threads, memory=memory,
        )  # fmt: skip
        fingerprints.add(open_folder(tmp_path / f"out{number}").fingerprint)
    assert len(fingerprints) == 1
    assert seen == [dict.fromkeys(("user", "item"), is_spilled) for is_spilled in (True, False, False)]


def test_a_budget_that_is_too_small_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="memory 63999999: must be a whole number, 64000000 or more"):
        import_tables(spec(), tmp_path / "out", memory=63_999_999)


def test_orphans_are_refused_counted_or_added(tmp_path: Path) -> None:
    few = {"nodes.item.rows": items().slice(0, 2)}
    reason = (
        r"row 6: edges.\"user buys item\": item_id is 'c', and no 'item' has this id; 3 edges have no node at an "
        'end; give orphans = "drop" or "add"'
    )
    with pytest.raises(ValueError, match=reason):
        imported(tmp_path, **few)
    assert list(tmp_path.iterdir()) == []
    done = import_tables(spec(**few, **{f"{EDGES}.orphans": "drop"}), tmp_path / "dropped")
    assert done.notes[0] == "user buys item: left out 3 edges with an unknown source or destination"
    done = import_tables(spec(**few, **{f"{EDGES}.orphans": "add"}), tmp_path / "out")
    assert done.notes[0] == "user buys item: 2 nodes of item added by edges"
    graph = open_graph(tmp_path / "out")
    assert graph.columns["item"]["x"][2:].abs().sum() == 0
    assert len(pairs(graph)) == 7


@pytest.mark.core(1)
@pytest.mark.parametrize(("rule", "kept"), [("first", 1), ("last", 40)])
def test_duplicates_follow_their_times(tmp_path: Path, rule: str, kept: float) -> None:
    table = pa.table(
        {
            "user_id": ["u1", "u2", "u1"], "item_id": ["a", "a", "a"], "kind": ["buy"] * 3, "n": [40.0, 3.0, 1.0],
            "ts": pa.array([at(5), at(2), at(1)], pa.timestamp("us", "UTC")),
        }
    )  # fmt: skip
    graph = imported(
        tmp_path, **{f"{EDGES}.rows": table, f"{EDGES}.duplicates": rule, f"{EDGES}.columns": {"n": "raw"}}
    )
    by_pair = dict(zip(pairs(graph), graph.columns[BUYS]["n"].tolist(), strict=True))
    assert by_pair == {(0, 0): kept, (1, 0): 3}


@pytest.mark.parametrize(("rule", "amounts"), [("first", [1]), ("last", [40, 8, 32]), ("sum", [41, 24, 32])])
def test_duplicates_stay_apart_in_training_validation_and_test(
    tmp_path: Path, rule: str, amounts: list[float]
) -> None:
    times = pa.array([at(26), at(22), at(5), at(1), at(21)], pa.timestamp("us", "UTC"))
    table = pa.table({"user_id": ["u1"] * 5, "item_id": ["a"] * 5, "n": [32.0, 8, 40, 1, 16], "ts": times})
    graph = imported(
        tmp_path,
        **{
            f"{EDGES}.rows": table, f"{EDGES}.where": None, f"{EDGES}.duplicates": rule,
            f"{EDGES}.columns": {"n": "raw"}
        },
    )  # fmt: skip
    for edge_type in (BUYS, BACK):
        assert graph.columns[edge_type]["n"].tolist() == amounts
        assert graph.columns[edge_type]["time"].tolist()[-1] == times[3 if rule == "first" else 0].value


def test_duplicates_stay_apart_in_the_parts_of_a_column(tmp_path: Path) -> None:
    parts = pa.array(["val", "train", "val"])
    table = pa.table({"user_id": ["u1"] * 3, "item_id": ["a"] * 3, "n": [1.0, 2.0, 4.0], "part": parts})
    changes = {"rows": table, "where": None, "time": None, "duplicates": "sum", "split": {"column": "part"}}
    graph = imported(
        tmp_path,
        splits=None,
        **{f"{EDGES}.{name}": of for name, of in (*changes.items(), ("columns", {"n": "raw"}))},
    )
    columns = graph.columns[BUYS]
    assert dict(zip(columns["split"].tolist(), columns["n"].tolist(), strict=True)) == {0: 2, 1: 5}


@pytest.mark.parametrize(("split", "kept"), [("time", [2.0]), ("column", [2.0, 1.0])])
def test_the_first_of_a_pair_is_that_of_training_where_times_split_edges(
    tmp_path: Path, split: str, kept: list[float]
) -> None:
    """A column has no order of parts, so each keeps its first."""
    times = pa.array([at(22), at(5), at(26)], pa.timestamp("us", "UTC"))
    columns = {"user_id": ["u1"] * 3, "item_id": ["a"] * 3, "n": [1.0, 2.0, 4.0], "ts": times}
    table = pa.table(columns | {"part": ["val", "train", "val"]})
    by = {"column": "part"} if split == "column" else {"time": {"val": at(20), "test": at(25)}}
    changes = {"rows": table, "where": None, "duplicates": "first", "split": by, "columns": {"n": "raw"}}
    graph = imported(tmp_path, splits=None, **{f"{EDGES}.{name}": of for name, of in changes.items()})
    assert graph.columns[BUYS]["n"].tolist() == kept


def test_nodes_with_times_split_by_them(tmp_path: Path) -> None:
    table = pa.table(
        {
            "id": [10, 20, 30, 40],
            "y": ["no", "no", None, "yes"],
            "at": [at(1), at(21), at(22), at(28)],
            "v": [1, 5, 5, 5],
        }
    )
    values = {
        "splits": {"time": {"val": at(20), "test": at(25)}},
        "nodes": {
            "tx": {
                "rows": table,
                "id": "id",
                "time": "at",
                "timezone": "UTC",
                "label": "y",
                "columns": {"v": "number"},
            }
        },
    }
    import_tables(values, tmp_path / "out")
    graph = open_graph(tmp_path / "out")
    splits = {name: graph.split(name)["tx"].tolist() for name in graph.split_names}
    assert splits == {"train": [0], "val": [1]}
    assert graph.columns["tx"]["label"].tolist() == [0, 0, -1, -1]  # training has one class, "no"
    assert graph.columns["tx"]["x"].flatten().tolist() == [0, 4, 4, 4]


def test_an_edge_has_the_later_time_of_itself_and_its_source(tmp_path: Path) -> None:
    table = pa.table(
        {"user_id": ["u1", "u2", "u3"], "born": pa.array([at(8), at(1), at(1)], pa.timestamp("us", "UTC"))}
    )
    graph = imported(tmp_path, **{"nodes.user": {"rows": table, "id": "user_id", "time": "born"}})
    assert pairs(graph)[:2] == [(1, 0), (0, 0)]
    assert graph.columns[BUYS]["time"][:2].tolist() == [round(at(day).timestamp() * 10**6) for day in (1, 3)]


def test_one_column_splits_the_labels_of_all_types(tmp_path: Path) -> None:
    table = items().append_column("part", pa.array(["train", "test", None, "val"]))
    changes = {"nodes.item.rows": table, "nodes.item.label": "category", "splits": {"column": "part"}}
    graph = imported(tmp_path, **changes)
    splits = {name: graph.split(name)["item"].tolist() for name in graph.split_names}
    assert splits == {"train": [0], "test": [1]}  # the label of the fourth is unknown
    with pytest.raises(ValueError, match="nodes.item.split.column: no column 'part'"):
        imported(tmp_path, "no", **{**changes, "nodes.item.rows": items()})


def test_the_folder_knows_encoders_and_no_paths(tmp_path: Path) -> None:
    pq.write_table(users(), tmp_path / "secret_users.parquet")
    changes = {"nodes.user.rows": None, "nodes.user.files": ["secret_users.parquet"]}
    import_tables(spec(**changes), tmp_path / "out", folder=tmp_path)
    text = (tmp_path / "out" / "import.json").read_text() + (tmp_path / "out" / "graph.json").read_text()
    assert "secret" not in text
    assert "kind =" not in text


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("no unit", {f"{EDGES}.rows": events().set_column(3, "ts", pa.array(range(8)))}, "time: times are numbers without a unit"),
    ("a lossy unit", {"time_unit": "s", f"{EDGES}.rows": events().set_column(3, "ts", pa.array([1] * 8, pa.timestamp("us", "UTC")))}, "not a whole number of s"),
    ("labels without times", {"nodes.item.label": "category"}, "its labels have no times, and the split is by time"),
    ("duplicates", {f"{EDGES}.duplicates": "refuse", f"{EDGES}.rows": pa.concat_tables([events()] * 2)}, "edges 0 and 7 both lead from node 0 to node 0; remove one"),
]  # fmt: skip


@pytest.mark.core(5)
@pytest.mark.parametrize(("changes", "reason"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_bad_input_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        imported(tmp_path, **changes)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_refused_before_work(tmp_path: Path) -> None:
    imported(tmp_path)
    with pytest.raises(ValueError, match="exists already"):
        imported(tmp_path)


RAW = {"kind": "raw", "column": "price"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({f"{EDGES}.reverse": "../../../outside"}, "becomes a file name"),
        ({"nodes.item.columns": {"../../../outside": RAW}}, "becomes a file name"),
        ({f"{EDGES}.columns": {"../outside": RAW}}, "becomes a file name"),
        (
            {"nodes.item.columns": {"x": RAW, "price": "number"}},
            "columns.x: the features are stored under this",
        ),
        (
            {"nodes.item.label": "category", "nodes.item.columns": {"label": RAW}},
            "label: the labels are stored",
        ),
        ({f"{EDGES}.columns": {"time": RAW}}, "columns.time: the times are stored under this name"),
        (
            {f"{EDGES}.columns": {"split": RAW}, f"{EDGES}.split": {"ratio": [0.8, 0.1, 0.1]}},
            "split: the splits are stored",
        ),
    ],
)
def test_names_stay_within_the_folder_and_replace_no_array(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    before = sorted(tmp_path.parent.iterdir())
    rows = {f"{EDGES}.rows": events().append_column("price", [[1.0] * len(events())])}
    with pytest.raises(ValueError, match=reason):
        import_tables(spec(**rows, **changes), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    assert sorted(tmp_path.parent.iterdir()) == before


def test_names_that_meet_no_array_are_free() -> None:
    names = {"x": "raw", "time": "raw", "label": "raw"}
    check_file_names(
        checked_spec({"nodes": {"item": {"files": ["i.csv"], "id": "i", "columns": names}}}, "spec")
    )
    spaced = {"Unit Price": "number"}  # joined to the features, no file
    check_file_names(
        checked_spec({"nodes": {"item": {"files": ["i.csv"], "id": "i", "columns": spaced}}}, "spec")
    )


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
