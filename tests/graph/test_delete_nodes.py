"""A graph without some nodes: the folder that the other rows give."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from khop import EdgeTable, NodeTable, open_folder, write_graph
from khop.graph.delete_nodes import delete_nodes
from khop.graph.verify import verify_folder

BUYS, BACK = ("user", "buys", "item"), ("item", "back", "user")
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
