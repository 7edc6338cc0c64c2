"""Graphs written through the disk: the bits of those built in memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import khop
from khop.graph.build import write_graph
from khop.graph.tables import EdgeChunks, EdgeTable, NodeTable

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
        ({BUYS: EdgeChunks([])}, "there is no chunk; give at least one khop.EdgeTable"),
        (
            {BUYS: EdgeChunks([EdgeTable(SOURCES, DESTINATIONS), EdgeTable(SOURCES, DESTINATIONS, COLUMNS)])},
            "chunk 1 has columns .*'time'.*, the first has {}; give all chunks the same",
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


def test_ten_million_edges_with_a_hub_keep_to_a_budget_of_64_mib(tmp_path: Path) -> None:
    """In memory they would take 220 MB: 22 bytes each."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, tmp_path / "g"], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 100 << 20
    assert khop.open_folder(tmp_path / "g").num_edges(("a", "to", "a")) == 10_000_000
