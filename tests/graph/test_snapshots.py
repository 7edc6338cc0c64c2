"""Snapshots of a graph folder: the record, and the folder that readers open."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from khop import NodeTable, open_folder, open_ids, write_graph
from khop.graph.describe import describe_folder
from khop.graph.snapshots import (
    Snapshot,
    current_folder,
    folder_with,
    only_writer,
    owner_of,
    publish_snapshot,
    snapshots_of,
)
from khop.graph.verify import verify_folder


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    return write_graph(tmp_path / "graph", {"n": NodeTable(ids=["a", "b"])}, {})


def published(graph: Path, *ids: str) -> Path:
    new = write_graph(graph.parent / "new", {"n": NodeTable(ids=list(ids))}, {})
    (graph / "snapshots").mkdir(exist_ok=True)
    snapshot = Snapshot(open_folder(new).fingerprint, {"n": 1})
    return publish_snapshot(graph, new, snapshot, open_folder(graph).fingerprint)


def test_a_graph_without_appends_is_its_own_folder(graph: Path) -> None:
    assert snapshots_of(graph) == ()
    assert current_folder(graph) == folder_with(graph, "any") == graph
    assert snapshots_of(graph / "none") == ()
    assert owner_of(graph) is None


def test_readers_open_the_newest(graph: Path) -> None:
    base = open_folder(graph).fingerprint
    first = published(graph, "a", "b", "c")
    newest = published(graph, "a", "b", "c", "d")
    assert current_folder(graph) == open_folder(graph).path == newest
    assert [one.fingerprint for one in snapshots_of(graph)] == [
        base, open_folder(first).fingerprint, open_folder(newest).fingerprint,
    ]  # fmt: skip
    assert folder_with(graph, base) == graph / "snapshots" / base[:16]
    assert open_folder(folder_with(graph, base)).num_nodes("n") == 2
    assert (owner_of(first), owner_of(newest)) == (graph, graph)
    assert open_ids(graph, "n").rows(["d"]).tolist() == [3]
    summary = describe_folder(graph)
    assert (summary.path, summary.nodes[0].count) == (str(graph), 4)


def test_verify_names_files_of_the_snapshot(graph: Path) -> None:
    newest = published(graph, "a", "b", "c")
    assert verify_folder(graph) == []
    file = newest / "nodes/n/ids/tags.npy"
    file.write_bytes(file.read_bytes()[:-1] + b"\x7f")
    (found,) = verify_folder(graph)
    assert graph / found.file == file


def test_the_same_snapshot_may_be_published_again(graph: Path) -> None:
    """A writer died between its folder and the record."""
    newest = published(graph, "a", "b", "c")
    (graph / "snapshots.json").unlink()
    assert published(graph, "a", "b", "c") == newest
    assert len(snapshots_of(graph)) == 2


@pytest.mark.parametrize(
    "text", ["", "{}", '{"format": "other"}', '{"format": "khop-snapshots 1", "snapshots": [1]}']
)
def test_a_damaged_record_is_an_error(graph: Path, text: str) -> None:
    (graph / "snapshots.json").write_text(text)
    with pytest.raises(ValueError, match=r"snapshots.json: not what khop writes"):
        open_folder(graph)


def test_a_snapshot_that_is_missing_is_named(graph: Path) -> None:
    newest = published(graph, "a", "b", "c")
    shutil.rmtree(newest)
    with pytest.raises(ValueError, match=f"{newest}: no such folder"):
        open_folder(graph)


def test_one_process_writes(graph: Path) -> None:
    expected = pytest.raises(ValueError, match="another process appends to it")
    with only_writer(graph), expected, only_writer(graph):
        pass
    with only_writer(graph):
        pass
