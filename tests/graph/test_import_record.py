"""The record of an import lies beside the arrays of a graph folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.importing.shop import spec

from khop import import_tables
from khop.graph.folder import open_folder
from khop.graph.import_record import DOCUMENT, import_record
from support.small_folders import write_learnable_graph


def test_an_imported_folder_has_a_record_and_others_have_none(tmp_path: Path) -> None:
    import_tables(spec(), tmp_path / "shop")
    assert import_record(open_folder(tmp_path / "shop"))["nodes"]["user"]["id"]["column"] == "user_id"
    graph = write_learnable_graph(tmp_path / "toy")
    assert import_record(open_folder(graph)) == {}
    (graph / DOCUMENT).write_text("{}")  # of something else: graph.json does not name it
    assert import_record(open_folder(graph)) == {}


def test_a_damaged_record_is_refused(tmp_path: Path) -> None:
    import_tables(spec(), tmp_path / "shop")
    with (tmp_path / "shop" / DOCUMENT).open("a") as file:
        file.write(" ")
    with pytest.raises(ValueError, match=r"import\.json: checksum differs from graph\.json"):
        import_record(open_folder(tmp_path / "shop"))
