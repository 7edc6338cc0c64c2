"""The record of a standard set."""

from __future__ import annotations

from pathlib import Path

import pytest

import khop
from khop.graph.folder import STANDARD_SET, open_folder, standard_set


def test_a_record_is_read_back_and_damage_is_found(tmp_path: Path) -> None:
    nodes = {"node": khop.NodeTable(2)}
    khop.write_graph(tmp_path / "a", nodes, {}, documents={STANDARD_SET: b'{"name": "x"}'})
    khop.write_graph(tmp_path / "b", nodes, {})
    assert standard_set(open_folder(tmp_path / "a")) == {"name": "x"}
    assert standard_set(open_folder(tmp_path / "b")) == {}
    (tmp_path / "a" / STANDARD_SET).write_text('{"name": "y"}')
    with pytest.raises(ValueError, match="checksum differs"):
        standard_set(open_folder(tmp_path / "a"))
