"""Files of one folder in another: links, or copies where there are none."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from khop import NodeTable, open_folder, write_graph
from khop.graph.snapshots import link_files, link_graph
from khop.graph.verify import verify_folder


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    documents = {"import.json": b"{}"}
    return write_graph(tmp_path / "graph", {"n": NodeTable(ids=["a", "b"])}, {}, documents=documents)


def test_a_linked_graph_is_a_graph(graph: Path, tmp_path: Path) -> None:
    (graph / "derived").mkdir()
    link_graph(graph, tmp_path / "linked")
    assert verify_folder(tmp_path / "linked") == []
    assert open_folder(tmp_path / "linked").fingerprint == open_folder(graph).fingerprint
    assert os.path.samefile(graph / "graph.json", tmp_path / "linked" / "graph.json")
    assert not (tmp_path / "linked" / "derived").exists()


def test_a_file_system_without_links_gets_copies(
    graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, "no link")

    monkeypatch.setattr(os, "link", refuse)
    link_files(graph, tmp_path / "copied", ["graph.json"])
    assert (tmp_path / "copied" / "graph.json").read_bytes() == (graph / "graph.json").read_bytes()
    assert not os.path.samefile(graph / "graph.json", tmp_path / "copied" / "graph.json")
