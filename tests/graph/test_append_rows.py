"""A graph with new rows has the bits of the graph that all rows at once give.

Later data as rows to add: numbers of the joined graph, new nodes alone, edges in their order.

New edges of one type: places by time, columns without values, and types that stay as they are.

Ids with new ones after them: the files that all ids at once give.

A graph without some nodes: the folder that the other rows give.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import khop
from data.tables.shop import TYPE, at, spec, users
from khop import EdgeTable, NodeTable, import_tables, open_folder, open_ids, write_graph
from khop.graph import append_rows as merged_rows
from khop.graph.append_rows import (
    AddedEdges,
    AddedNodes,
    AddedRows,
    Appending,
    MergedRows,
    added_rows,
    append_ids,
    at_end,
    delete_nodes,
    merged_offsets,
)
from khop.graph.atomic import Meter
from khop.graph.folder_writer import FolderWriter
from khop.graph.manifest import write_manifest
from khop.graph.node_ids import given_ids, joined_nodes, later_ids
from khop.graph.verify import verify_folder
from khop.kernels.id_table import StringKeys

BUYS, BACK = ("user", "buys", "item"), ("item", "back", "user")

BUYS, BACK = ("user", "buys", "item"), ("item", "back", "user")


NAMES = itertools.count()


@dataclass
class Rows:
    """Users and items, and edges between them, in two parts: of the graph, and new."""

    users: tuple[int, int]
    items: tuple[int, int]
    edges: tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]  # user, item, time
    kinds: dict[str, str] = field(default_factory=dict)


@st.composite
def rows(draw: st.DrawFn) -> Rows:
    users = draw(st.integers(0, 6)), draw(st.integers(0, 5))
    items = draw(st.integers(0, 4)), draw(st.integers(0, 3))

    def edges(users: int, items: int) -> list[tuple[int, int, int]]:
        if not users or not items:
            return []
        ends = st.tuples(st.integers(0, users - 1), st.integers(0, items - 1), st.integers(0, 5))
        return draw(st.lists(ends, max_size=12))

    return Rows(users, items, (edges(users[0], items[0]), edges(sum(users), sum(items))))


def node_columns(first: int, count: int, has_times: bool) -> dict[str, np.ndarray[Any, Any]]:
    numbers = np.arange(first, first + count)
    found = {
        "x": np.stack([numbers, numbers**2], 1).astype(np.float32),
        "label": (numbers % 3).astype(np.int64),
    }
    return found | ({"time": (numbers * 7 % 5).astype(np.int64)} if has_times else {})


def names(first: int, count: int, kind: str) -> list[str] | np.ndarray[Any, Any]:
    if kind == "text":
        return [f"n{number}" * (1 + number % 3) for number in range(first, first + count)]
    return np.arange(first, first + count) * 1001 - 5


def node_table(first: int, count: int, has_times: bool, kind: str, split: int) -> NodeTable:
    splits = {"train": np.arange(split)} if split else {}
    return NodeTable(
        count, node_columns(first, count, has_times), splits, {"label": 3}, ids=names(first, count, kind)
    )


def edge_tables(edges: list[tuple[int, int, int]], columns: str) -> dict[Any, EdgeTable]:
    array = np.array(edges, np.int64).reshape(-1, 3)
    own = {name: array[:, 2] for name in ("time", "price") if name in columns}
    return {
        BUYS: EdgeTable(array[:, 0], array[:, 1], own),
        BACK: EdgeTable(array[:, 1], array[:, 0], own, BUYS),
    }


def appended(base: Path, out: Path, new: AddedRows, split: str = "") -> Path:
    out.mkdir()
    graph = open_folder(base)
    write_manifest(out, Appending(graph, new, FolderWriter(out, Meter(0)), split, threads=2).write())
    return out


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


@given(
    rows=rows(),
    columns=st.sampled_from(["", "price", "time", "price time"]),
    timed=st.sampled_from(["", "user", "user item"]),
    kind=st.sampled_from(["text", "integer"]),
)
def test_it_has_the_bits_of_all_rows_at_once(
    folder: Path, rows: Rows, columns: str, timed: str, kind: str
) -> None:
    name = next(NAMES)
    sort_by = "time" if timed or "time" in columns else None
    counts = {"user": rows.users, "item": rows.items}

    def nodes(end: int) -> dict[str, NodeTable]:
        return {t: node_table(0, sum(of[:end]), t in timed, kind, min(2, of[0])) for t, of in counts.items()}

    write_graph(folder / f"{name}-base", nodes(1), edge_tables(rows.edges[0], columns), sort_by=sort_by)
    whole = write_graph(
        folder / f"{name}-whole",
        nodes(2),
        edge_tables(rows.edges[0] + rows.edges[1], columns),
        sort_by=sort_by,
    )
    added = {
        t: AddedNodes(of[1], node_columns(of[0], of[1], t in timed), given_ids(names(*of, kind), t))
        for t, of in counts.items()
    }
    later = {
        t: AddedEdges(table.sources, table.destinations, np.arange(len(rows.edges[1])), dict(table.columns))
        for t, table in edge_tables(rows.edges[1], columns).items()
    }
    new = AddedRows({t: one for t, one in added.items() if one.count}, later if rows.edges[1] else {})
    out = appended(folder / f"{name}-base", folder / f"{name}-out", new)
    assert open_folder(out).manifest == open_folder(whole).manifest
    assert open_folder(out).fingerprint == open_folder(whole).fingerprint
    assert verify_folder(out) == []


ADDED_ROWS_BUYS, ADDED_ROWS_BACK = ("user", "buys", "item"), ("item", "bought-by", "user")


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
    buys = new.edges[ADDED_ROWS_BUYS]
    found = sorted(
        zip(buys.positions.tolist(), buys.sources.tolist(), buys.destinations.tolist(), strict=True)
    )
    assert found == [(0, 3, 3), (1, 1, 0), (2, 3, 0)], "in the order of the table"
    assert len(buys) == len(new.edges[ADDED_ROWS_BACK]) == 3
    times = dict(zip(buys.positions.tolist(), buys.columns["time"].tolist(), strict=True))
    assert [times[i] for i in range(3)] == [int(at(day).timestamp()) * 10**6 for day in (29, 30, 28)]


def test_a_graph_is_no_later_data(folders: tuple[Path, Path]) -> None:
    base = open_folder(folders[0])
    with pytest.raises(ValueError, match="was not imported with --encoders"):
        added_rows(base, base)


LIKES, KNOWS = ("user", "likes", "item"), ("user", "knows", "user")


def write_base(path: Path, sort_by: str | None = "time") -> Path:
    likes = {"time": np.array([5, 1, 5]), "split": np.array([0, 1, 2], np.int8)}
    edges = {
        LIKES: EdgeTable(np.array([0, 1, 2]), np.array([0, 0, 1]), likes),
        KNOWS: EdgeTable(np.array([0]), np.array([1])),
    }
    return write_graph(path, {"user": NodeTable(3), "item": NodeTable(2)}, edges, sort_by=sort_by)


def append_edges_appended(base: Path, out: Path, new: AddedRows) -> Path:
    out.mkdir()
    write_manifest(out, Appending(open_folder(base), new, FolderWriter(out, Meter(0))).write())
    return out


def likes(sources: list[int], items: list[int], times: list[int]) -> AddedRows:
    columns = {"time": np.array(times)}
    edges = AddedEdges(np.array(sources), np.array(items), np.arange(len(sources)), columns)
    return AddedRows({}, {LIKES: edges})


def test_new_edges_follow_equal_times(tmp_path: Path) -> None:
    out = append_edges_appended(
        write_base(tmp_path / "base"), tmp_path / "out", likes([2, 1, 0], [0, 0, 0], [1, 5, 3])
    )
    folder = open_folder(out)
    assert folder.csc(LIKES).indices.tolist() == [1, 2, 0, 0, 1, 2]
    assert folder.columns()[LIKES]["time"].tolist() == [1, 1, 3, 5, 5, 5]
    edge_id = folder.edge_id(LIKES)
    assert edge_id is not None
    assert edge_id.tolist() == [1, 3, 5, 0, 4, 2]


def test_edges_without_the_column_are_in_no_split(tmp_path: Path) -> None:
    out = append_edges_appended(write_base(tmp_path / "base"), tmp_path / "out", likes([2], [1], [9]))
    split = open_folder(out).columns()[LIKES]["split"]
    assert (split.dtype, split.tolist()) == (torch.int8, [1, 0, 2, -1])


def test_rows_in_the_order_of_input_end_with_new_edges(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base", sort_by=None)
    out = append_edges_appended(base, tmp_path / "out", likes([2], [0], [0]))
    assert open_folder(out).csc(LIKES).indices.tolist() == [0, 1, 2, 2]


def test_types_without_new_rows_are_the_same_files(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base")
    out = append_edges_appended(base, tmp_path / "out", likes([2], [1], [9]))
    for name in ("indptr", "indices"):
        files = [folder / "edges" / "user__knows__user" / f"{name}.npy" for folder in (base, out)]
        assert os.path.samefile(*files)
    new_users = AddedRows({"user": AddedNodes(2)}, {})
    more = append_edges_appended(base, tmp_path / "more", new_users)
    assert open_folder(more).csc(KNOWS).indptr.tolist() == [0, 0, 1, 1, 1, 1]
    indices = [folder / "edges" / "user__knows__user" / "indices.npy" for folder in (base, more)]
    assert os.path.samefile(*indices), "new nodes without edges"


TEXTS = st.lists(st.text(st.characters(codec="utf-8"), max_size=9), unique=True, max_size=40)
NUMBERS = st.lists(st.integers(-(2**63), 2**63 - 1), unique=True, max_size=40)


def of(values: list[str] | list[int]) -> list[str] | np.ndarray:  # type: ignore[type-arg]
    return values if values and isinstance(values[0], str) else np.array(values, np.int64)  # type: ignore[return-value]


@given(TEXTS.filter(lambda found: len(found) > 1) | NUMBERS.filter(lambda found: len(found) > 1), st.data())
def test_the_index_is_that_of_all_ids(values: list[str] | list[int], data: st.DataObject) -> None:
    first = data.draw(st.integers(1, len(values) - 1))
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        write_graph(path / "base", {"n": NodeTable(ids=of(values[:first]))}, {})
        write_graph(path / "whole", {"n": NodeTable(ids=of(values))}, {})
        base, out = open_folder(path / "base"), FolderWriter(path / "out", Meter(0))
        out.folder.mkdir()
        append_ids(base, base.manifest.node("n"), given_ids(of(values[first:]), "n"), out, 1 << 26, 1)
        assert dict(out.arrays) == dict(open_folder(path / "whole").manifest.arrays)


@pytest.mark.parametrize("file", ["bytes", "rows", "buckets"])
def test_damaged_ids_are_not_copied(tmp_path: Path, file: str) -> None:
    write_graph(tmp_path / "base", {"n": NodeTable(ids=[f"id-{i}" for i in range(20)])}, {})
    damaged = tmp_path / "base" / "nodes" / "n" / "ids" / f"{file}.npy"
    content = bytearray(damaged.read_bytes())
    content[-1 if file != "buckets" else -8] ^= 1
    damaged.write_bytes(content)
    base, out = open_folder(tmp_path / "base"), FolderWriter(tmp_path / "out", Meter(0))
    out.folder.mkdir()
    with pytest.raises(ValueError, match=r"checksum differs from graph.json"):
        append_ids(base, base.manifest.node("n"), given_ids(["new"], "n"), out, 1 << 26, 1)
    assert open_ids(tmp_path / "base", "n")


USERS, ITEMS = 6, 4


def write(
    path: Path, users: list[int], items: list[int], edges: list[tuple[int, int, int]], sort: str | None
) -> Path:
    """Write the graph of some of all users and items, by their first numbers."""
    kept = [edge for edge in edges if edge[0] in users and edge[1] in items]
    sources = np.array([users.index(edge[0]) for edge in kept], np.int64)
    destinations = np.array([items.index(edge[1]) for edge in kept], np.int64)
    columns = {"time": np.array([edge[2] for edge in kept], np.int64)}
    nodes = {
        "user": NodeTable(
            len(users),
            {"x": np.array(users, np.float32), "label": np.array([user % 3 for user in users], np.int64)},
            {"train": np.array([users.index(user) for user in (4, 0) if user in users], np.int64)},
            {"label": 3},
            ids=[f"u{user}" for user in users],
        ),
        "item": NodeTable(len(items), ids=np.array(items) * 7),
    }
    tables = {
        BUYS: EdgeTable(sources, destinations, columns),
        BACK: EdgeTable(destinations, sources, columns, BUYS),
    }
    return write_graph(path, nodes, tables, sort_by=sort)


EDGE = st.tuples(st.integers(0, USERS - 1), st.integers(0, ITEMS - 1), st.integers(0, 4))


@given(
    st.lists(EDGE, max_size=20),
    st.sets(st.integers(1, USERS - 1), max_size=4).filter(lambda users: 0 not in users),
    st.sets(st.integers(1, ITEMS - 1), max_size=2),
    st.sampled_from([None, "time"]),
)
def test_it_has_the_bits_of_the_other_rows(
    edges: list[tuple[int, int, int]], users: set[int], items: set[int], sort: str | None
) -> None:
    every = list(range(USERS)), list(range(ITEMS))
    with tempfile.TemporaryDirectory() as name:
        base = open_folder(write(Path(name, "base"), *every, edges, sort))
        deleted = {"user": np.array(sorted(users), np.int64), "item": np.array(sorted(items), np.int64)}
        gone = delete_nodes(base, deleted, Path(name, "out"))
        left = [[n for n in of if n not in out] for of, out in zip(every, (users, items), strict=True)]
        expected = open_folder(write(Path(name, "rest"), *left, edges, sort))
        found = open_folder(Path(name, "out"))
        assert found.manifest == expected.manifest
        assert gone.get(BUYS, 0) == base.num_edges(BUYS) - expected.num_edges(BUYS)
        assert verify_folder(found.path) == []


def test_rows_that_were_in_input_order_stay_in_it(tmp_path: Path) -> None:
    times, links = np.array([3, 2, 1, 0, 9]), ("n", "links", "n")
    table = EdgeTable(np.array([0, 1, 2, 3]), np.full(4, 4), {"w": np.arange(4, dtype=np.float32)})
    path = write_graph(tmp_path / "g", {"n": NodeTable(5, {"time": times})}, {links: table}, sort_by="time")
    graph = khop.open_graph(path).with_edges({"n visited n": table})
    base = open_folder(graph.save(tmp_path / "base"))
    assert base.row_order == {links: "time"}
    delete_nodes(base, {"n": np.array([2])}, tmp_path / "out")
    found = open_folder(tmp_path / "out")
    assert found.row_order == base.row_order
    assert found.csc(links).indices.tolist() == [2, 1, 0]
    assert found.csc(("n", "visited", "n")).indices.tolist() == [0, 1, 2]


def test_damage_is_not_copied(tmp_path: Path) -> None:
    base = write(tmp_path / "base", list(range(USERS)), list(range(ITEMS)), [(0, 0, 0)], None)
    file = base / "nodes/user/x.npy"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"x.npy: checksum differs"):
        delete_nodes(open_folder(base), {"user": np.array([1])}, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_unknown_numbers_stay_unknown_and_a_split_may_lose_all_its_nodes(tmp_path: Path) -> None:
    numbers = np.array([0.5, np.nan, 2.5, np.nan], np.float32)
    splits = {"train": np.array([0, 1]), "test": np.array([2])}
    nodes = {"item": NodeTable(4, {"label": numbers}, splits, ids=list("abcd"), unknown=["label"])}
    base = open_folder(write_graph(tmp_path / "base", nodes, {}))
    delete_nodes(base, {"item": np.array([1, 2])}, tmp_path / "out")
    found = open_folder(tmp_path / "out")
    assert np.array_equal(found.columns()["item"]["label"].numpy(), numbers[[0, 3]], equal_nan=True)
    assert found.split_names == ("train",)
    assert verify_folder(found.path) == []


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


# New rows between the rows of an array, chunk by chunk.


PLACES = st.lists(st.integers(0, 40), max_size=30)


@given(PLACES, st.integers(0, 40), st.sampled_from([8, 24, 1 << 20]))
def test_chunks_give_what_one_insertion_does(places: list[int], count: int, chunk: int) -> None:
    at = np.sort(np.minimum(np.array(places, np.int64), count))
    table, added = np.arange(count, dtype=np.int32), -1 - np.arange(len(at))
    with patch.object(merged_rows, "CHUNK_BYTES", chunk):
        chunks = list(MergedRows(count, at).chunks(lambda first, last: table[first:last], added))
    np.testing.assert_array_equal(np.concatenate(chunks), np.insert(table.astype(np.int64), at, added))


@given(
    st.lists(st.integers(0, 6), max_size=20),
    st.lists(st.integers(0, 9), max_size=20),
    st.sampled_from([8, 24, 1 << 20]),
)
def test_offsets_count_the_entries_of_both(base: list[int], new: list[int], chunk: int) -> None:
    old = np.concatenate([[0], np.cumsum(np.bincount(np.array(base, np.int64), minlength=7))])
    rows = np.sort(np.array(new, np.int64))
    with patch.object(merged_rows, "CHUNK_BYTES", chunk):
        chunks = list(merged_offsets(lambda first, last: old[first:last], 7, rows, 10))
    whole = np.bincount(np.array(base + new, np.int64), minlength=10)
    np.testing.assert_array_equal(np.concatenate(chunks), np.concatenate([[0], np.cumsum(whole)]))


def test_rows_at_the_end_are_known_to_be() -> None:
    assert at_end(3, 2).is_at_end
    assert at_end(3, 0).is_at_end
    assert not MergedRows(3, np.array([2, 3])).is_at_end
    assert len(MergedRows(3, np.array([2, 3]))) == 5
