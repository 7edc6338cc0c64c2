"""What goes into a folder comes out of it, and what must not go in is refused by name.

Graphs written through the disk: the bits of those built in memory.

A graph written as a folder has everything of the graph that it was read from.

The index of ids in files: the one of NumPy, for any threads, budget and chunks.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import khop
from khop.api.partition import walk_graph
from khop.graph.append_rows import delete_nodes
from khop.graph.atomic import Meter
from khop.graph.build import save_graph, sliced, table_chunks, write_graph, write_ids
from khop.graph.edge_runs import EdgeChunk, EdgePlan
from khop.graph.folder import GraphFolder, open_folder
from khop.graph.folder_writer import FolderWriter
from khop.graph.node_ids import kind_of
from khop.graph.npy import STORED, torch_dtype
from khop.graph.spill import MOST_RANGES, Field, Ranges, Spill
from khop.graph.store import open_csc_graph
from khop.graph.tables import EdgeChunks, EdgeTable, NodeTable
from khop.graph.verify import verify_folder
from khop.kernels.csc import Csc
from khop.kernels.id_table import Keys, StringKeys, id_table
from khop.sampling.random_walks import WalkCounts
from support.commands import PROGRAM
from support.key_indexes import key_index_of
from support.small_typed_folders import write_typed_graph
from support.spilled_edges import EDGE_TYPE, LARGE, SMALL, edges_with_hubs, expected, plan_of, written

LINK = ("user", "buys", "item")
Pairs = list[tuple[int, int]]


def edge_table(pairs: Pairs, dtype: type[np.integer] = np.int64, **columns: np.ndarray) -> EdgeTable:
    array = np.array(pairs, dtype).reshape(-1, 2)
    return EdgeTable(array[:, 0], array[:, 1], columns)


def write_pairs(path: Path, users: int, items: int, pairs: Pairs, **columns: np.ndarray) -> Path:
    nodes = {"user": NodeTable(users), "item": NodeTable(items)}
    return write_graph(path, nodes, {LINK: edge_table(pairs, **columns)})


def rows(csc: Csc) -> list[list[int]]:
    return [csc.indices[start:end].tolist() for start, end in pairwise(csc.indptr.tolist())]


@st.composite
def bipartite(draw: st.DrawFn) -> tuple[int, int, Pairs]:
    users, items = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    pairs = st.tuples(st.integers(0, users - 1), st.integers(0, items - 1))
    return users, items, draw(st.lists(pairs, max_size=30))


@given(graph=bipartite())
def test_a_row_holds_the_sources_of_its_destination_in_input_order(
    tmp_path_factory: pytest.TempPathFactory, graph: tuple[int, int, Pairs]
) -> None:
    users, items, pairs = graph
    weight = np.arange(len(pairs), dtype=np.float32) * 0.5
    folder = open_folder(
        write_pairs(tmp_path_factory.mktemp("graph") / "g", users, items, pairs, weight=weight)
    )

    by_item = [[place for place, (_, item) in enumerate(pairs) if item == row] for row in range(items)]
    order = [place for row in by_item for place in row]
    assert rows(folder.csc(LINK)) == [[pairs[place][0] for place in row] for row in by_item]
    assert folder.columns()[LINK]["weight"].tolist() == [weight[place] for place in order]
    edge_id = folder.edge_id(LINK)
    assert (list(range(len(pairs))) if edge_id is None else edge_id.tolist()) == order


def test_every_dtype_comes_back_as_it_was(tmp_path: Path) -> None:
    columns = {dtype: torch.tensor([[0, 1], [1, 0], [1, 1]]).to(torch_dtype(dtype)) for dtype in STORED}
    folder = open_folder(write_graph(tmp_path / "g", {"item": NodeTable(columns=columns)}, {}))
    for dtype, column in columns.items():
        read = folder.columns()["item"][dtype]
        assert read.dtype == column.dtype
        assert torch.equal(read, column)
        assert folder.schema.columns["item"][dtype].dtype == dtype
        assert folder.schema.columns["item"][dtype].shape == (2,)


def test_indices_are_as_narrow_as_the_source_ids_allow(tmp_path: Path) -> None:
    for users, dtype in ((1 << 31, torch.int32), ((1 << 31) + 1, torch.int64)):
        folder = open_folder(write_pairs(tmp_path / str(users), users, 3, [(users - 1, 2), (0, 1)]))
        assert folder.csc(LINK).indices.dtype == dtype
        assert rows(folder.csc(LINK)) == [[], [0], [users - 1]]


def test_an_edge_id_is_kept_only_where_columns_were_reordered(tmp_path: Path) -> None:
    sorted_pairs, shuffled = [(1, 0), (0, 1)], [(0, 1), (1, 0)]
    weight = np.array([0.5, 0.25])
    plain = open_folder(write_pairs(tmp_path / "plain", 2, 2, shuffled))
    in_order = open_folder(write_pairs(tmp_path / "sorted", 2, 2, sorted_pairs, weight=weight))
    reordered = open_folder(write_pairs(tmp_path / "reordered", 2, 2, shuffled, weight=weight))
    assert plain.edge_id(LINK) is None
    assert in_order.edge_id(LINK) is None
    assert reordered.edge_id(LINK).tolist() == [1, 0]
    assert reordered.edge_id(LINK).dtype == torch.int32
    assert reordered.columns()[LINK]["weight"].tolist() == [0.25, 0.5]


def test_any_memory_layout_is_read_as_it_lies(tmp_path: Path) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.save(tmp_path / "x.npy", x)
    columns = {
        "mapped": np.load(tmp_path / "x.npy", mmap_mode="r"),
        "fortran": np.asfortranarray(x),
        "big-endian": x.astype(">f4"),
        "every-second": np.repeat(x, 2, axis=0)[::2],
        "trained": torch.tensor(x, requires_grad=True),
        "transposed": torch.tensor(x).t().contiguous().t(),
    }
    ids = np.array([2, 0, 1])
    ids.flags.writeable = False
    edges = EdgeTable(ids, np.array([0, 2, 2], np.int16))
    table = NodeTable(columns=columns, splits={"train": np.array([True, False, True]), "val": ids[2:]})
    folder = open_folder(write_graph(tmp_path / "g", {"item": table}, {("item", "like", "item"): edges}))
    for name, column in folder.columns()["item"].items():
        assert column.tolist() == x.tolist(), name
    assert rows(folder.csc(("item", "like", "item"))) == [[2], [], [0, 1]]
    assert folder.split("train")["item"].tolist() == [0, 2]
    assert folder.split("val")["item"].tolist() == [1]


def test_a_column_larger_than_a_chunk_comes_back_whole(tmp_path: Path) -> None:
    x = torch.arange(3 * (1 << 21), dtype=torch.int32).view(-1, 3)
    order = torch.arange(len(x) - 1, -1, -1)
    edges = EdgeTable(order, order, {"x": x})
    folder = open_folder(
        write_graph(tmp_path / "g", {"n": NodeTable(columns={"x": x})}, {("n", "to", "n"): edges})
    )
    assert torch.equal(folder.columns()["n"]["x"], x)
    assert torch.equal(folder.columns()["n", "to", "n"]["x"], x.flip(0))
    assert torch.equal(folder.edge_id(("n", "to", "n")), order.int())
    assert torch.equal(folder.csc(("n", "to", "n")).indices, torch.arange(len(x), dtype=torch.int32))


def test_the_same_graph_has_the_same_fingerprint_wherever_it_lies(tmp_path: Path) -> None:
    paths = [write_pairs(tmp_path / name, 2, 2, [(1, 0), (0, 1)]) for name in ("a", "b")]
    other = write_pairs(tmp_path / "c", 2, 2, [(1, 0), (1, 1)])
    prints = [open_folder(path).fingerprint for path in (*paths, other)]
    assert prints[0] == prints[1] != prints[2]
    assert len(prints[0]) == 64


def test_progress_ends_with_all_bytes_done(tmp_path: Path) -> None:
    heard: list[tuple[str, int, int]] = []
    x = np.ones((1000, 2))
    weight = {"w": np.ones(2)}
    nodes = {"user": NodeTable(columns={"x": x}, splits={"train": np.arange(5)}), "item": NodeTable(2)}
    edges = {LINK: edge_table([(5, 1), (7, 0)], **weight)}
    write_graph(tmp_path / "g", nodes, edges, notice=lambda *news: heard.append(news))
    done = [news[1] for news in heard]
    assert done == sorted(done)
    assert {news[2] for news in heard} == {done[-1]}
    assert heard[0] == ("nodes/user/x.npy", x.nbytes, done[-1])


def test_reverses_are_mutual(tmp_path: Path) -> None:
    reverse = ("item", "bought-by", "user")
    edges = {
        LINK: edge_table([(0, 1), (1, 0), (1, 1)]),
        reverse: EdgeTable(np.array([1, 0, 1]), np.array([1, 1, 0]), reverse_of=LINK),
        ("user", "knows", "user"): EdgeTable(
            np.array([0, 1]), np.array([1, 0]), reverse_of=("user", "knows", "user")
        ),
    }
    nodes = {"user": NodeTable(2), "item": NodeTable(2)}
    schema = open_folder(write_graph(tmp_path / "g", nodes, edges)).schema
    assert schema.reverse_of == {
        LINK: reverse,
        reverse: LINK,
        ("user", "knows", "user"): ("user", "knows", "user"),
    }


def test_a_graph_may_be_empty(tmp_path: Path) -> None:
    nothing = np.zeros(0, np.int64)
    folder = open_folder(
        write_graph(
            tmp_path / "g",
            {"user": NodeTable(0), "item": NodeTable(columns={"x": np.zeros((0, 3), np.float32)})},
            {LINK: EdgeTable(nothing, nothing, {"w": np.zeros((0, 2))})},
        )
    )
    assert folder.num_nodes("item") == folder.num_edges(LINK) == 0
    assert rows(folder.csc(LINK)) == []
    assert folder.columns()["item"]["x"].shape == (0, 3)
    assert folder.columns()[LINK]["w"].shape == (0, 2)
    assert open_folder(write_graph(tmp_path / "nothing", {}, {})).schema.node_types == ()


NAN = float("nan")
BAD_NODES = {
    "nan feature": (
        NodeTable(columns={"x": np.array([[0, 1], [2, NAN]])}),
        "node type 'item': column 'x'[1, 1] is nan: not a finite number; replace it",
    ),
    "infinite half": (
        NodeTable(columns={"x": torch.tensor([1.0, -torch.inf]).half()}),
        "column 'x'[1] is -inf: not a finite number",
    ),
    "nan bfloat16": (
        NodeTable(columns={"x": torch.tensor([[1.0], [NAN]], dtype=torch.bfloat16)}),
        "column 'x'[1, 0] is nan: not a finite number",
    ),
    "label too high": (
        NodeTable(columns={"y": np.array([0, -1, 3])}, num_classes={"y": 3}),
        "column 'y'[2] is 3: there are 3 classes, labels 0 to 2, and -1 for unknown; raise num_classes",
    ),
    "label too low": (
        NodeTable(columns={"y": np.array([0, -2])}, num_classes={"y": 3}),
        "column 'y'[1] is -2: there are 3 classes",
    ),
    "real labels": (
        NodeTable(columns={"y": np.array([0.5])}, num_classes={"y": 3}),
        "column 'y'[0] is 0.5: no class; labels are whole numbers, or NaN for unknown",
    ),
    "infinite unknown labels": (
        NodeTable(columns={"y": np.array([np.inf, np.nan])}, unknown=["y"]),
        "column 'y'[0] is inf: not a finite number",
    ),
    "unknown labels of no column": (
        NodeTable(columns={"y": np.array([0.5])}, unknown=["z"]),
        "unknown names 'z': no such column; there are ['y']",
    ),
    "unknown labels as text": (
        NodeTable(columns={"y": np.array([0.5])}, unknown="y"),
        "unknown is 'y': give a collection of names, as ('y',)",
    ),
    "classes of no column": (
        NodeTable(columns={"y": np.array([0])}, num_classes={"z": 3}),
        "num_classes of 'z': no such column; there are ['y']",
    ),
    "unequal columns": (
        NodeTable(columns={"a": np.zeros(3), "b": np.zeros(4)}),
        "column 'b' has 4 rows, but node type 'item' has 3 nodes; give one row for each",
    ),
    "column shorter than count": (NodeTable(5, {"a": np.zeros(3)}), "column 'a' has 3 rows, but"),
    "no count": (
        NodeTable(),
        "node type 'item': has neither a count nor a column; give NodeTable(count=...)",
    ),
    "negative count": (NodeTable(-1), "node type 'item': count -1: must be a whole number, 0 or more"),
    "list": (NodeTable(columns={"x": [1, 2]}), "column 'x' is a list: give a torch tensor or a NumPy array"),
    "complex": (
        NodeTable(columns={"x": np.zeros(2, complex)}),
        "column 'x' is complex128: convert it to one",
    ),
    "text": (NodeTable(columns={"x": np.array(["a"])}), "column 'x' is str32: convert it to one of bool,"),
    "number": (NodeTable(columns={"x": torch.tensor(1)}), "column 'x' is a single number: give one row per"),
    "empty split": (
        NodeTable(5, splits={"train": np.array([], int)}),
        "node type 'item': split 'train' is empty; leave the split out or give it nodes",
    ),
    "empty mask": (NodeTable(5, splits={"train": np.zeros(5, bool)}), "split 'train' is empty"),
    "short mask": (
        NodeTable(5, splits={"train": np.ones(4, bool)}),
        "split 'train' is a mask of shape (4,), but there are 5 nodes; give one each",
    ),
    "split out of range": (
        NodeTable(5, splits={"train": np.array([4, 5])}),
        "split 'train'[1] is 5: there are 5 'item' nodes, ids 0 to 4; drop the id or raise the count",
    ),
    "split of reals": (NodeTable(5, splits={"train": np.zeros(2)}), "split 'train' is float64 of shape (2,)"),
    "id twice in a split": (
        NodeTable(5, splits={"train": torch.tensor([3, 1, 4, 1, 3])}),
        "split 'train'[3] is 1: that node is already in the split; drop one",
    ),
    "splits overlap": (
        NodeTable(9, splits={"train": np.array([1, 2]), "val": np.array([3]), "test": np.array([8, 3])}),
        "split 'test'[1] is 3: the node is in split 'val' too; drop it in one",
    ),
    "unsafe column": (
        NodeTable(1, {"../x": np.zeros(1)}),
        "node type 'item': column '../x': becomes a file name",
    ),
    "column twice": (
        NodeTable(1, {"X": np.zeros(1), "x": np.zeros(1)}),
        "column 'x': 'X' differs only in case and would share its file; rename one",
    ),
    "original ids of another kind": (
        NodeTable(2, {"original_id": np.zeros(2)}),
        "column 'original_id' is float64 of shape (2,): ids are an int64 vector",
    ),
    "negative original id": (
        NodeTable(2, {"original_id": np.array([0, -4])}),
        "column 'original_id'[1] is -4: an id is 0 or more; rename the column",
    ),
}


@pytest.mark.parametrize("case", BAD_NODES)
def test_bad_nodes_are_refused_by_name_and_nothing_is_written(tmp_path: Path, case: str) -> None:
    table, sentence = BAD_NODES[case]
    refuse(tmp_path, {"item": table}, {}, sentence)


def test_splits_of_different_groups_may_overlap(tmp_path: Path) -> None:
    splits = {"train.0": np.array([0, 1]), "val.0": np.array([2]), "train.1": np.array([1, 2])}
    folder = open_folder(write_graph(tmp_path / "g", {"item": NodeTable(3, splits=splits)}, {}))
    assert folder.split_names == ("train.0", "val.0", "train.1")
    again = {"item": NodeTable(3, splits={**splits, "val.1": np.array([1])})}
    refuse(tmp_path / "again", again, {}, "split 'val.1'[0] is 1: the node is in split 'train.1' too")


TWO = np.array([0, 1])
BACK = ("item", "back", "user")
BAD_EDGES = {
    "source too high": (
        {LINK: EdgeTable(np.array([0, 905]), TWO)},
        "('user', 'buys', 'item'): sources[1] is 905: there are 900 'user' nodes, ids 0 to 899; drop the",
    ),
    "negative destination": (
        {LINK: EdgeTable(TWO, torch.tensor([-1, 0]))},
        "destinations[0] is -1: there are 2 'item' nodes, ids 0 to 1; drop the edge or raise the count",
    ),
    "no nodes at all": (
        {("user", "in", "shop"): EdgeTable(TWO, TWO)},
        "destinations[0] is 0: there are no 'shop' nodes",
    ),
    "more sources": (
        {LINK: EdgeTable(np.array([0, 1, 1]), TWO)},
        "('user', 'buys', 'item'): 3 sources, 2 destinations: an edge has both",
    ),
    "real ids": ({LINK: EdgeTable(np.zeros(2), TWO)}, "sources is float64 of shape (2,): ids are a vector"),
    "masks": ({LINK: EdgeTable(np.zeros(2, bool), TWO)}, "sources is bool of shape (2,): ids are a vector"),
    "matrix": ({LINK: EdgeTable(np.zeros((2, 2), int), TWO)}, "sources is int64 of shape (2, 2): ids are a"),
    "short column": (
        {LINK: EdgeTable(TWO, TWO, {"w": np.zeros(1)})},
        "column 'w' has 1 rows, but edge type ('user', 'buys', 'item') has 2 edges; give one row for each",
    ),
    "nan in a column": ({LINK: EdgeTable(TWO, TWO, {"w": np.array([1, NAN])})}, "column 'w'[1] is nan"),
    "no such node type": (
        {("user", "to", "moon"): EdgeTable(TWO, TWO)},
        "('user', 'to', 'moon'): no node type 'moon'; there are ['user', 'item', 'shop']",
    ),
    "two names": (
        {("user", "item"): EdgeTable(TWO, TWO)},
        "edge type ('user', 'item'): give source type, relation and destination type, as",
    ),
    "two words": (
        {"user buys": EdgeTable(TWO, TWO)},
        "edge type 'user buys': give source type, relation and",
    ),
    "unsafe relation": ({("user", "a/b", "item"): EdgeTable(TWO, TWO)}, "part 'a/b': becomes a file name"),
    "ambiguous relation": (
        {("user", "a__b", "item"): EdgeTable(TWO, TWO)},
        "part 'a__b': becomes a file name",
    ),
    "relation twice": (
        {LINK: EdgeTable(TWO, TWO), ("user", "Buys", "item"): EdgeTable(TWO, TWO)},
        "edge type 'user__Buys__item': 'user__buys__item' differs only in case",
    ),
    "reverse of nothing": (
        {LINK: EdgeTable(TWO, TWO, reverse_of=BACK)},
        "reverse_of ('item', 'back', 'user'): no such edge type; there are [('user', 'buys', 'item')]",
    ),
    "reverse that is none": (
        {
            LINK: EdgeTable(TWO, TWO, reverse_of=("user", "b", "item")),
            ("user", "b", "item"): EdgeTable(TWO, TWO),
        },
        "it must lead from destination to source",
    ),
    "reverse of fewer edges": (
        {LINK: EdgeTable(TWO, TWO, reverse_of=BACK), BACK: EdgeTable(TWO[:1], TWO[:1])},
        "some edges have no reverse in it (2 and 1 edges); add them, or omit reverse_of",
    ),
    "reverse of other edges": (
        {LINK: EdgeTable(TWO, TWO, reverse_of=BACK), BACK: EdgeTable(TWO, TWO[::-1])},
        "some edges have no reverse in it (2 and 2 edges)",
    ),
    "reverse of two": (
        {
            LINK: EdgeTable(TWO, TWO, reverse_of=BACK),
            ("user", "b", "item"): EdgeTable(TWO, TWO, reverse_of=BACK),
            BACK: EdgeTable(TWO, TWO),
        },
        "reverse_of ('item', 'back', 'user'), whose reverse is ('user', 'buys', 'item'); name one",
    ),
}


@pytest.mark.parametrize("case", BAD_EDGES)
def test_bad_edges_are_refused_by_name_and_nothing_is_written(tmp_path: Path, case: str) -> None:
    edges, sentence = BAD_EDGES[case]
    refuse(tmp_path, {"user": NodeTable(900), "item": NodeTable(2), "shop": NodeTable(0)}, edges, sentence)


def refuse(
    home: Path, nodes: dict[str, NodeTable], edges: dict[tuple[str, str, str], EdgeTable], sentence: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)) as refused:
        write_graph(home / "g", nodes, edges)
    assert "\n" not in str(refused.value)
    assert not home.exists() or list(home.iterdir()) == []


BUYS, BOUGHT_BY = ("user", "buys", "item"), ("item", "bought-by", "user")
COUNT = 30_000
RANDOM = np.random.default_rng(1)
SOURCES = RANDOM.integers(200, size=COUNT)
DESTINATIONS = np.minimum(RANDOM.integers(900, size=COUNT), 700)  # a fifth ends at node 700
COLUMNS = {"time": RANDOM.integers(50, size=COUNT), "x": RANDOM.random((COUNT, 2)).astype(np.float16)}
NODES = {"user": NodeTable(200, {"time": np.arange(200)}), "item": NodeTable(900)}


def tables(columns: dict[str, np.ndarray]) -> dict[tuple[str, str, str], EdgeTable]:
    return {
        BUYS: EdgeTable(SOURCES, DESTINATIONS, columns, BOUGHT_BY),
        BOUGHT_BY: EdgeTable(DESTINATIONS, SOURCES, columns, BUYS),
    }


def chunks(columns: dict[str, np.ndarray], step: int) -> Iterator[EdgeTable]:
    for first in range(0, COUNT, step):
        part = slice(first, first + step)
        yield EdgeTable(SOURCES[part], DESTINATIONS[part], {n: c[part] for n, c in columns.items()})


def document(folder: Path) -> bytes:
    return (folder / "graph.json").read_bytes()


@pytest.mark.long
@pytest.mark.parametrize("sort_by", [None, "time"])
@pytest.mark.parametrize("columns", [{}, COLUMNS], ids=["bare", "columns"])
def test_budget_threads_and_chunks_do_not_change_the_folder(
    columns: dict[str, np.ndarray], sort_by: str | None, tmp_path: Path
) -> None:
    right = document(write_graph(tmp_path / "memory", NODES, tables(columns), sort_by=sort_by))
    for name, memory, threads in (("a", 1 << 16, 1), ("b", 1 << 17, 2), ("c", 1 << 40, 4)):
        edges = tables(columns)
        written = write_graph(tmp_path / name, NODES, edges, sort_by=sort_by, memory=memory, threads=threads)
        assert document(written) == right
    for step in (999, COUNT):
        stream = {BUYS: EdgeChunks(chunks(columns, step), reverse=BOUGHT_BY)}
        written = write_graph(
            tmp_path / f"s{step}", NODES, stream, sort_by=sort_by, memory=1 << 17, threads=2
        )
        assert document(written) == right
        assert sorted(path.name for path in written.iterdir()) == ["edges", "graph.json", "nodes"]


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ({BUYS: EdgeChunks([])}, "there are no chunks; give at least one khop.EdgeTable"),
        (
            {BUYS: EdgeChunks([EdgeTable(SOURCES, DESTINATIONS), EdgeTable(SOURCES, DESTINATIONS, COLUMNS)])},
            "chunk 1 has columns .*'time'.*, but the first has {}; give all chunks the same",
        ),
        (
            {BUYS: EdgeChunks([EdgeTable(SOURCES, DESTINATIONS + 500)])},
            "destinations.*there are 900 'item' nodes",
        ),
        (
            {BUYS: EdgeChunks(chunks({}, 99), reverse=("user", "x", "item"))},
            "must lead from 'item' to 'user'",
        ),
    ],
)
def test_chunks_that_do_not_fit_are_refused_and_nothing_remains(
    edges: dict[tuple[str, str, str], EdgeChunks], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        write_graph(tmp_path / "g", NODES, edges)
    assert list(tmp_path.iterdir()) == []


SCRIPT = """
import sys, numpy as np, khop
from pathlib import Path
def chunks():
    for number in range(40):
        random = np.random.default_rng(number)
        ends = random.integers(1_000_000, size=(2, 250_000), dtype=np.int32)
        ends[1, random.random(250_000) < 0.17] = 7
        yield khop.EdgeTable(ends[0], ends[1], {"w": ends[0]})
import khop.graph.build, torch
def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))
import threading, time
before, peak, end = anonymous(), [0], threading.Event()
def watch():
    while not end.wait(0.005):
        peak[0] = max(peak[0], anonymous())
thread = threading.Thread(target=watch); thread.start()
nodes = {"a": khop.NodeTable(1_000_000)}
khop.write_graph(sys.argv[1], nodes, {"a to a": khop.EdgeChunks(chunks())}, memory=64 << 20, threads=2)
end.set(); thread.join()
print(peak[0] - before)
"""


@pytest.mark.long
def test_ten_million_edges_with_a_hub_keep_to_a_budget_of_64_mib(tmp_path: Path) -> None:
    """In memory they would take 220 MB: 22 bytes each."""
    done = subprocess.run([*PROGRAM, SCRIPT, tmp_path / "g"], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100 << 20
    assert khop.open_folder(tmp_path / "g").num_edges(("a", "to", "a")) == 10_000_000


def saved(folder: GraphFolder, path: Path, sort_by: str | None = None) -> GraphFolder:
    splits = {name: folder.split(name) for name in folder.split_names}
    graph = open_csc_graph(folder)
    return open_folder(save_graph(path, graph, folder.columns(), splits, None, sort_by, origin=folder))


def test_a_saved_folder_has_the_arrays_of_its_origin(shop: Path, tmp_path: Path) -> None:
    origin = open_folder(shop)
    copy = saved(origin, tmp_path / "copy")
    assert copy.schema == origin.schema
    differing = {file for file, entry in copy.arrays.items() if origin.arrays.get(file) != entry}
    assert differing == set()
    assert copy.arrays.keys() == origin.arrays.keys()


def test_sorting_while_saving_is_sorting_while_writing(tmp_path: Path) -> None:
    by_time = open_folder(write_typed_graph(tmp_path / "by-time"))
    again = saved(by_time, tmp_path / "again", sort_by="time")
    assert {file for file, entry in again.arrays.items() if by_time.arrays.get(file) != entry} == set()


@pytest.mark.parametrize("memory", [1 << 40, 2])
def test_copies_know_the_positions_of_edges_in_the_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: int
) -> None:
    """Also through the disk, sorted by another column, and of a partitioned graph."""
    monkeypatch.setattr("khop.graph.build.free_memory_bytes", lambda: memory)
    generator = torch.Generator().manual_seed(3)
    ends = torch.randint(20, (2, 90), generator=generator)
    times = torch.randint(5, (90,), generator=generator)
    given = {"t": times, "number": torch.arange(90)}
    path = write_graph(tmp_path / "g", {"n": NodeTable(20)}, {"n to n": EdgeTable(*ends, given)})
    to = ("n", "to", "n")

    def number(folder: Path) -> None:
        opened = open_folder(folder)
        edge_id = opened.edge_id(to)
        assert edge_id is not None
        assert torch.equal(opened.columns()[to]["number"], edge_id.long())
        assert edge_id.dtype == torch.int32

    number(path)
    number(khop.open_graph(path).save(tmp_path / "saved"))
    source = open_folder(path)
    arguments = (open_csc_graph(source), source.columns(), {}, None)
    number(save_graph(tmp_path / "sorted", *arguments, sort_by="t", origin=source))
    khop.cluster_graph(tmp_path / "sorted", tmp_path / "clustered", 2)
    number(tmp_path / "clustered")
    khop.partition_graph(tmp_path / "sorted", tmp_path / "parts", 3, method="hash")
    number(khop.open_graph(tmp_path / "parts").save(tmp_path / "joined"))


def test_copies_of_a_graph_are_sorted_by_the_same_column(tmp_path: Path) -> None:
    nodes = {"a": NodeTable(4, {"time": np.array([4, 3, 2, 1])}), "b": NodeTable(4)}
    ends = np.arange(4), np.zeros(4, np.int64)
    edges = {("a", "to", "b"): EdgeTable(*ends), ("b", "to", "b"): EdgeTable(*ends)}
    path = write_graph(tmp_path / "g", nodes, edges, sort_by="time")
    copies = [tmp_path / name for name in ("clusters", "saved", "walks", "joined")]
    khop.cluster_graph(path, copies[0], 2, method="range")
    khop.open_graph(path).save(copies[1])
    walk_graph(path, copies[2], ["b to b"], "near", WalkCounts(2, 1, 0.5, 2))
    khop.partition_graph(path, tmp_path / "parts", 2, method="range")
    khop.open_graph(tmp_path / "parts").save(copies[3])
    for copy in map(open_folder, copies):
        assert copy.row_order == {("a", "to", "b"): "time"}  # not the new type, nor one without times
        assert copy.csc(("a", "to", "b")).indices.tolist() == [3, 2, 1, 0]
    # Draws by the times of sources in other parts need rows that are known to be sorted.
    khop.partition_graph(copies[0], tmp_path / "of a copy", 2, method="range")
    graph = khop.open_graph(tmp_path / "of a copy")
    sampler = khop.NeighborSampler(graph, [{"b to b": 0, "a to b": 2}], rule=khop.Temporal("time"))
    seeds = khop.Seeds({"b": torch.tensor([0])}, {"b": torch.tensor([0])}, {"b": torch.tensor([3])})
    drawn = sampler.sample(seeds, khop.DrawKey(0)).nodes["a"]
    assert set(graph.original_ids("a")[drawn].tolist()) <= {1, 2, 3}


def test_vectors_of_labels_may_have_unknown_values_in_copies_too(tmp_path: Path) -> None:
    y = torch.tensor([[0.5, float("nan")], [1.0, 2.0], [float("nan"), 3.0]])
    nodes = {"item": NodeTable(columns={"y": y}, ids=["a", "b", "c"], unknown=["y"])}
    path = write_graph(
        tmp_path / "graph", nodes, {("item", "to", "item"): EdgeTable(torch.arange(2), torch.arange(1, 3))}
    )
    graph = khop.open_graph(path)
    graph.save(tmp_path / "copy")
    graph.with_edges({("item", "like", "item"): EdgeTable(torch.tensor([2]), torch.tensor([0]))}).save(
        tmp_path / "more"
    )
    delete_nodes(open_folder(path), {"item": np.array([1])}, tmp_path / "less")
    for name, rows in (("graph", [0, 1, 2]), ("copy", [0, 1, 2]), ("more", [0, 1, 2]), ("less", [0, 2])):
        assert verify_folder(tmp_path / name) == []
        found = khop.open_graph(tmp_path / name).columns["item"]["y"]
        assert np.array_equal(found.numpy(), y[rows].numpy(), equal_nan=True)


def test_a_damaged_origin_is_not_copied(shop: Path, tmp_path: Path) -> None:
    file = shop / "nodes" / "item" / "x.npy"
    file.write_bytes(file.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(ValueError, match=r"x\.npy: checksum differs"):
        khop.open_graph(shop).save(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


TEXT = StringKeys.of([f"name {n * 31}" for n in range(20_000)])
NUMBERS = np.arange(20_000) * 977 - 5


@pytest.mark.parametrize("keys", [TEXT, NUMBERS, TEXT[:0], TEXT[7:9]], ids=["text", "numbers", "none", "two"])
def test_neither_threads_nor_budget_nor_chunks_change_a_bit(keys: Keys, tmp_path: Path) -> None:
    index = key_index_of(keys)
    entries = []
    for number, (memory, threads, step) in enumerate(
        ((1 << 16, 1, 700), (1 << 16, 3, 9000), (1 << 30, 2, 10**6))
    ):
        folder = tmp_path / str(number)
        writer = FolderWriter(folder, Meter(0))
        chunks = [keys[first : first + step] for first in range(0, len(keys), step)]
        write_ids(writer, "user", kind_of(keys), lambda chunks=chunks: chunks, folder, memory, threads)
        for name in ("buckets", "rows", "tags"):
            assert np.array_equal(np.load(folder / f"nodes/user/ids/{name}.npy"), getattr(index, name))
        entries.append(writer.arrays)
        assert [path.name for path in folder.iterdir()] == ["nodes"]
    assert entries[0] == entries[1] == entries[2]


def test_a_table_gives_its_keys_in_order(tmp_path: Path) -> None:
    table = id_table("string")
    table.append(TEXT)
    files = []
    for name, chunks in (("table", partial(table_chunks, table)), ("keys", partial(sliced, TEXT))):
        writer = FolderWriter(tmp_path / name, Meter(0))
        write_ids(writer, "user", "string", chunks, tmp_path, 1 << 20, 1)
        files.append(writer.arrays)
    assert files[0] == files[1]


# One edge of each pair of nodes, for any threads, budget and chunks.


@given(
    st.sampled_from(["first", "last", "sum"]),
    st.sampled_from(["", "time"]),
    st.sampled_from([(), (6, 1 << 39)]),
    st.integers(0, 2**32),
)
def test_one_edge_of_each_pair_and_part_remains(
    duplicates: str, sort_by: str, bounds: tuple[int, ...], seed: int
) -> None:
    chunk = edges_with_hubs(9000, 40, seed)
    plan = plan_of(chunk, 40, sort_by=sort_by, duplicates=duplicates, parts={"time": bounds})
    kept = one_of_each(chunk, duplicates, sort_by, bounds)
    right = expected(kept, plan)
    right.pop("edge_id", None)
    for memory, threads, step in ((SMALL, 2, 4000), (LARGE, 1, 100_000)):
        with TemporaryDirectory() as folder:
            _, arrays = written(Path(folder), chunk, plan, memory, threads, step)
        assert arrays.keys() == right.keys()
        for name, values in right.items():
            assert np.array_equal(arrays[name], values), name


def one_of_each(chunk: EdgeChunk, duplicates: str, sort_by: str, bounds: tuple[int, ...]) -> EdgeChunk:
    """Reduce duplicates with a dict of Python."""
    pairs: dict[tuple[int, int, int], list[int]] = {}
    times = chunk.columns["time"].tolist()
    for at, pair in enumerate(zip(chunk.sources.tolist(), chunk.destinations.tolist(), strict=True)):
        pairs.setdefault((*pair, sum(times[at] >= bound for bound in bounds)), []).append(at)
    for edges in pairs.values():
        edges.sort(key=lambda at: (chunk.columns["time"][at] if sort_by else 0, at))
    kept = sorted(edges[0 if duplicates == "first" else -1] for edges in pairs.values())
    columns = {name: values[kept].copy() for name, values in chunk.columns.items()}
    if duplicates == "sum":
        of_kept = {edges[-1]: edges for edges in pairs.values()}
        for name in set(columns) - {"time"}:
            wide = np.float64 if name == "price" else np.int64
            for row, at in enumerate(kept):
                total = np.zeros(chunk.columns[name].shape[1:], wide)
                for edge in of_kept[at]:
                    total = total + chunk.columns[name][edge]
                columns[name][row] = total
    return EdgeChunk(chunk.sources[kept], chunk.destinations[kept], columns)


@pytest.mark.parametrize("memory", [SMALL, LARGE])
def test_refused_duplicates_name_both_edges(memory: int, tmp_path: Path) -> None:
    sources, destinations = np.arange(9000) % 3001, np.zeros(9000, np.int64)
    plan = EdgePlan(EDGE_TYPE, 3001, 4, duplicates="refuse")
    with pytest.raises(ValueError, match="edges 0 and 3,001 both lead from node 0 to node 0; remove one"):
        written(tmp_path, EdgeChunk(sources, destinations), plan, memory, 1, 500)


# Edges sorted through the disk: the bits of a stable sort, for any threads, budget and chunks.


@pytest.mark.long
@given(
    st.sampled_from([0, 1, 5000, 9000]),
    st.sampled_from([1, 2, 3000, 70_000]),
    st.sampled_from(["", "time"]),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_neither_threads_nor_budget_nor_chunks_change_a_bit_write_edges(
    count: int, num_destinations: int, sort_by: str, has_columns: bool, seed: int
) -> None:
    chunk = edges_with_hubs(count, num_destinations, seed)
    if not has_columns and not sort_by:
        chunk = replace(chunk, columns={})
    plan = plan_of(chunk, num_destinations, sort_by=sort_by)
    right = expected(chunk, plan)
    entries = []
    for memory, threads, step in (
        (SMALL, 1, 777),
        (SMALL, 2, 5000),
        (4 * SMALL, 4, 1300),
        (LARGE, 2, 100_000),
    ):
        with TemporaryDirectory() as folder:
            entry, arrays = written(Path(folder), chunk, plan, memory, threads, step)
        assert arrays.keys() == right.keys()
        for name, values in right.items():
            assert arrays[name].dtype == values.dtype, name
            assert np.array_equal(arrays[name], values), name
        entries.append(entry)
    assert all(entry == entries[0] for entry in entries)


# Rows on disk by ranges of a key, and ranges themselves.


@given(st.integers(-(2**62), 2**62), st.integers(0, 2**62))
def test_ranges_cover_all_values_once(first: int, values: int) -> None:
    ranges = Ranges.of(first, first + values)
    assert 1 <= ranges.count <= MOST_RANGES
    assert ranges.begin(0) == first
    assert ranges.begin(ranges.count) == first + values
    assert all(ranges.begin(n) < ranges.begin(n + 1) for n in range(ranges.count) if values)
    if ranges.shift:
        assert ranges.within(0).shift < ranges.shift


@given(st.lists(st.integers(0, 9), min_size=1, max_size=50), st.integers(1, 20), st.integers(1, 30))
def test_groups_cover_all_ranges_once_and_keep_to_their_size(
    counts: list[int], most: int, most_values: int
) -> None:
    ranges = Ranges(0, 2 * len(counts), 1, len(counts))
    groups = list(ranges.grouped(np.array(counts), most, most_values))
    assert [n for first, end in groups for n in range(first, end)] == list(range(len(counts)))
    for first, end in groups:
        assert end == first + 1 or (sum(counts[first:end]) <= most and 2 * (end - first) <= most_values)


def test_rows_are_read_by_range_in_the_order_of_the_runs(tmp_path: Path) -> None:
    fields = [Field("key", "int64"), Field("x", "float32", (2,))]
    spill = Spill(tmp_path / "rows", fields, "key", Ranges.of(10, 14))
    for keys in ([13, 10, 13], [], [11, 13]):
        rows = np.array(keys, np.int64)
        spill.append({"key": rows, "x": np.stack([rows, rows + 100], 1)})
    assert spill.counts().tolist() == [1, 1, 0, 3]
    assert spill.read("x", 3, 4).tolist() == [[13, 113], [13, 113], [13, 113]]
    assert spill.read("key", 0, 2).tolist() == [10, 11]
    assert [rows["key"].tolist() for rows in spill.pieces(3, 1)] == [[13], [13], [13]]
    assert spill.row_bytes == 16
    spill.save()
    again = Spill(tmp_path / "rows", fields, "key", Ranges.of(10, 14))
    again.load()
    assert again.read("key", 0, 4).tolist() == [10, 13, 13, 11, 13]
    spill.close()
    assert not (tmp_path / "rows").exists()


def test_a_file_that_became_shorter_is_an_error(tmp_path: Path) -> None:
    spill = Spill(tmp_path / "rows", [Field("key", "int64")], "key", Ranges.of(0, 4))
    spill.append({"key": np.arange(4)})
    os.truncate(tmp_path / "rows", 8)
    with pytest.raises(OSError, match="rows: is shorter than was written"):
        spill.read("key", 0, 4)
