"""Snapshots of a graph folder: the record, and the folder that readers open."""

from __future__ import annotations

import json
import re
import shutil
from hashlib import sha256
from pathlib import Path

import pytest

from khop import NodeTable, open_folder, open_ids, write_graph
from khop.graph.describe import describe_folder
from khop.graph.layout import owner_of
from khop.graph.snapshots import (
    Snapshot,
    current_folder,
    folder_with,
    only_writer,
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


def record(**changes: object) -> str:
    """Return the text of a record with changes, and a checksum that fits it."""
    snapshot = {"fingerprint": "ab" * 32, "nodes": {}, "edges": {}}
    content = {"format": "khop-snapshots 2", "snapshots": [snapshot], "appended": [], **changes}
    digest = sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return json.dumps({**content, "sha256": digest})


DAMAGED = [
    "", "{}", "[]", "7", "null", "[" * 100_000, "\xff", '{"format": "other"}',
    '{"format": "khop-snapshots 2", "snapshots": []}',
    record(snapshots=[1]), record(snapshots=7), record(snapshots=None), record(appended=[{}]),
    record(snapshots=[{"fingerprint": 7, "nodes": {}, "edges": {}}]),
    record(snapshots=[{"fingerprint": "ab", "nodes": {}, "edges": {}}]),
    record(snapshots=[{"fingerprint": "../" * 16, "nodes": {}, "edges": {}}]),
    record(snapshots=[{"fingerprint": "ab" * 32, "nodes": [], "edges": {}}]),
    record(snapshots=[{"fingerprint": "ab" * 32, "nodes": {"n": "1"}, "edges": {}}]),
    record(appended=[{"digest": "ab" * 32, "snapshot": "ab", "nodes": {"n": 1}, "left": {}}]),
    record(appended=[{"digest": "ab" * 32, "snapshot": "ab", "nodes": {}, "left": {"n": [1]}}]),
]  # fmt: skip


@pytest.mark.core(10)
@pytest.mark.parametrize("text", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_record_is_an_error(graph: Path, text: str) -> None:
    (graph / "snapshots.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"snapshots.json: not what khop writes") as caught:
        open_folder(graph)
    assert not re.search(r"Expecting|codec|object|indices|invalid literal|recursion", str(caught.value))
    (found,) = verify_folder(graph)
    assert found.file == "snapshots.json"
    assert found.problem.startswith("not what khop writes")


@pytest.mark.long
def test_each_changed_byte_of_the_record_is_found(graph: Path) -> None:
    published(graph, "a", "b", "c")
    sound = (graph / "snapshots.json").read_bytes()
    for position in range(len(sound)):
        changed = bytearray(sound)
        changed[position] ^= 1
        (graph / "snapshots.json").write_bytes(changed)
        if _content(changed) != _content(sound):  # a blank between values says nothing
            assert [found.file for found in verify_folder(graph)] == ["snapshots.json"], position
    (graph / "snapshots.json").write_bytes(sound)
    assert verify_folder(graph) == []


def _content(text: bytes | bytearray) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None


def test_verify_compares_earlier_snapshots_with_the_record(graph: Path) -> None:
    first = published(graph, "a", "b", "c")
    second = published(graph, "a", "b", "c", "d")
    third = published(graph, "a", "b", "c", "d", "e")
    shutil.rmtree(first)
    shutil.rmtree(second)
    shutil.copytree(third, second)
    assert sorted(found.file for found in verify_folder(graph)) == sorted(
        [str(first.relative_to(graph)), str(second.relative_to(graph) / "graph.json")]
    )


def test_a_snapshot_that_is_missing_is_named(graph: Path) -> None:
    newest = published(graph, "a", "b", "c")
    shutil.rmtree(newest)
    with pytest.raises(ValueError, match=f"{newest}: no such folder"):
        open_folder(graph)


def test_one_process_writes(graph: Path) -> None:
    expected = pytest.raises(ValueError, match="another process is appending to it")
    with only_writer(graph), expected, only_writer(graph):
        pass
    with only_writer(graph):
        pass
