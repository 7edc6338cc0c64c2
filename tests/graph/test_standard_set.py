"""The record of a standard set."""

from __future__ import annotations

from pathlib import Path

import pytest

import khop
from khop.graph.folder import open_folder
from khop.graph.standard_set import DOCUMENT, standard_set


def test_a_record_is_read_back_and_damage_is_found(tmp_path: Path) -> None:
    nodes = {"node": khop.NodeTable(2)}
    khop.write_graph(tmp_path / "a", nodes, {}, documents={DOCUMENT: b'{"name": "x"}'})
    khop.write_graph(tmp_path / "b", nodes, {})
    assert standard_set(open_folder(tmp_path / "a")) == {"name": "x"}
    assert standard_set(open_folder(tmp_path / "b")) == {}
    (tmp_path / "a" / DOCUMENT).write_text('{"name": "y"}')
    with pytest.raises(ValueError, match="checksum differs"):
        standard_set(open_folder(tmp_path / "a"))
