"""Tables of an import are opened and checked before rows are read."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.importing.shop import spec

from khop.importing.import_state import edge_reader, node_reader, opened
from khop.importing.read_spec import checked_spec
from khop.importing.source import SourceFolder


def test_readers_and_tables_of_ids_exist_for_all_types(tmp_path: Path) -> None:
    state = opened(checked_spec(spec(), "spec"), SourceFolder(tmp_path, {}), 1, 1 << 20, lambda *_: None)
    assert {node_type: ids.kind for node_type, ids in state.ids.items()} == {
        "user": "string",
        "item": "string",
    }
    assert state.unit == "us"
    for edge_type in state.rules():
        assert edge_reader(state, edge_type).source.spec.time == "ts"
    assert node_reader(state, "user", None).columns()


def test_a_column_that_does_not_exist_is_found_without_reading(tmp_path: Path) -> None:
    values = checked_spec(spec(**{"nodes.user.id": "user"}), "spec")
    with pytest.raises(ValueError, match=r"nodes\.user\.id.*'user'.*user_id"):
        opened(values, SourceFolder(tmp_path, {}), 1, 1 << 20, lambda *_: None)
