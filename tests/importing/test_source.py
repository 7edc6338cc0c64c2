from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from khop.importing.source import OpenSource, SourceFolder
from khop.importing.spec import NodeSpec

FOLDER = SourceFolder(Path(), {})
TABLE = pa.table({"id": ["a", "b", "c"], "n": [1, 2, 3]})


def test_filters_apply_one_after_the_other() -> None:
    source = OpenSource.open(NodeSpec(rows=TABLE, id="id", where="n > 1"), "nodes.user", FOLDER)
    twice = source.filtered("n < 3", "key")
    assert [row["id"] for piece in source.pieces(["id"]) for row in piece().batch.to_pylist()] == ["b", "c"]
    assert [piece().column("id").to_pylist() for piece in twice.pieces(["id"])] == [["b"]]
    assert source.filtered(None, "key") is source


def test_files_are_relative_to_the_folder(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\nx\n")
    source = OpenSource.open(NodeSpec(files=("a.csv",), id="id"), "nodes.user", SourceFolder(tmp_path, {}))
    assert source.is_untyped
    with pytest.raises(ValueError, match="nodes.user.id: no column 'idd'"):
        source.check({"idd": "nodes.user.id"})
