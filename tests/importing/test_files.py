from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from khop.importing.csv_file import Dialect
from khop.importing.files import find_files, open_files

KEY = "nodes.user.files"


def test_files_are_sorted_by_the_bytes_of_their_names(tmp_path: Path) -> None:
    for name in ("b.csv", "a10.csv", "a9.csv", "é.csv", "Z.csv"):
        (tmp_path / name).write_text("id\n")
    names = [file.name for file in find_files(["*.csv"], tmp_path, KEY)]
    assert names == ["Z.csv", "a10.csv", "a9.csv", "b.csv", "é.csv"]


def test_a_missing_file_is_named_with_near_names(tmp_path: Path) -> None:
    (tmp_path / "users.parquet").write_bytes(b"")
    with pytest.raises(ValueError, match=r"nodes.user.files: user.parquet: no such file in .*users.parquet"):
        find_files(["user.parquet"], tmp_path, KEY)
    with pytest.raises(ValueError, match="no file matches"):
        find_files(["events/*.parquet"], tmp_path, KEY)
    with pytest.raises(ValueError, match="is a folder; name its files"):
        find_files(["."], tmp_path, KEY)


def test_a_file_of_two_patterns_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n")
    with pytest.raises(ValueError, match="a.csv is named twice"):
        find_files(["a.csv", "*.csv"], tmp_path, KEY)


def test_a_file_without_permission_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.csv").write_text("id\n")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may read every file
    with pytest.raises(ValueError, match="no permission to read it"):
        find_files(["a.csv"], tmp_path, KEY)


def test_formats_follow_the_names(tmp_path: Path) -> None:
    table = pa.table({"id": ["u1", "u2"]})
    pq.write_table(table, tmp_path / "a.parquet")
    with pa.OSFile(str(tmp_path / "b.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    (tmp_path / "c.csv").write_text("id\nu1\nu2\n")
    for name in ("a.parquet", "b.arrow", "c.csv"):
        opened = open_files(find_files([name], tmp_path, KEY), Dialect(), KEY)
        rows = [row["id"] for piece in opened.pieces(["id"]) for row in piece().batch.to_pylist()]
        assert rows == ["u1", "u2"]
        assert opened.name == name
    with pytest.raises(ValueError, match="several formats, csv, parquet"):
        open_files(find_files(["a.parquet", "c.csv"], tmp_path, KEY), Dialect(), KEY)
    (tmp_path / "d.xlsx").write_bytes(b"")
    with pytest.raises(ValueError, match=r"d.xlsx: unknown format; give files that end in .parquet"):
        open_files(find_files(["d.xlsx"], tmp_path, KEY), Dialect(), KEY)
