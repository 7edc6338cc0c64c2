"""One snapshot alone, in place of a graph with several."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from graph.test_snapshots import published
from khop import NodeTable, compact, open_folder, open_ids, write_graph
from khop.graph import snapshots as module
from khop.graph.snapshots import only_writer, snapshots_of
from khop.graph.verify import verify_folder
from support.commands import PROGRAM


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    made = write_graph(tmp_path / "graph", {"n": NodeTable(ids=["secret", "b"])}, {})
    published(made, "b", "c")
    return made


def test_the_newest_snapshot_takes_the_place_of_the_folder(graph: Path) -> None:
    fingerprint = open_folder(graph).fingerprint
    assert compact(graph) == graph
    assert (snapshots_of(graph), open_folder(graph).fingerprint) == ((), fingerprint)
    assert open_folder(graph).path == graph
    assert open_ids(graph, "n").rows(["secret", "b"]).tolist() == [-1, 0]
    assert verify_folder(graph) == []
    assert not any(b"secret" in file.read_bytes() for file in graph.parent.rglob("*.npy"))


def test_it_works_without_an_exchange_of_folders(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.ctypes, "CDLL", lambda *_, **__: object())
    compact(graph)
    assert (snapshots_of(graph), open_folder(graph).num_nodes("n")) == ((), 2)
    assert [path.name for path in graph.parent.iterdir()] == ["graph"]


KILLED = """
import os, shutil, signal, sys
import khop
from khop.graph import snapshots as module
def kill(*_): os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "exchange": module._exchange = kill
else: shutil.rmtree = lambda path, **named: None if named else kill()
khop.compact(sys.argv[1])
"""


@pytest.mark.parametrize("at", ["exchange", "rmtree"])
def test_a_kill_leaves_a_graph_and_the_next_call_erases_the_rest(graph: Path, at: str) -> None:
    subprocess.run([*PROGRAM, KILLED, str(graph), at], check=False)
    assert open_folder(graph).num_nodes("n") == 2
    assert any(b"secret" in file.read_bytes() for file in graph.parent.rglob("bytes.npy"))
    compact(graph)
    assert not any(b"secret" in file.read_bytes() for file in graph.parent.rglob("bytes.npy"))
    assert [path.name for path in graph.parent.iterdir()] == ["graph"]


def test_an_append_is_waited_for(graph: Path) -> None:
    with only_writer(graph), pytest.raises(ValueError, match="another process is appending to it"):
        compact(graph)
