"""A graph with new rows has the bits of the graph that all rows at once give."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from khop import EdgeTable, NodeTable, open_folder, write_graph
from khop.graph.added_rows import AddedEdges, AddedNodes, AddedRows
from khop.graph.append_rows import Appending
from khop.graph.folder_writer import FolderWriter
from khop.graph.given_ids import given_ids
from khop.graph.manifest import write_manifest
from khop.graph.progress import Meter
from khop.graph.verify import verify_folder

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
