"""An import goes on only with the same spec and the same files."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from khop.data.tables.pipeline import fingerprint_of
from khop.data.tables.read_spec import checked_spec
from khop.data.tables.source import SourceFolder


def test_a_change_of_spec_or_file_is_another_input(tmp_path: Path) -> None:
    file = tmp_path / "users.parquet"
    pq.write_table(pa.table({"id": ["a"]}), file)
    folder = SourceFolder(tmp_path, {})
    values = {"nodes": {"user": {"files": ["*.parquet"], "id": "id"}}}
    known = fingerprint_of(checked_spec(values, "spec"), folder)
    assert fingerprint_of(checked_spec(values, "spec"), folder) == known
    other = {"nodes": {"user": {"files": ["*.parquet"], "id": "id", "ids": "none"}}}
    assert fingerprint_of(checked_spec(other, "spec"), folder) != known
    os.utime(file, ns=(0, 7))
    assert fingerprint_of(checked_spec(values, "spec"), folder) != known


def test_tables_in_memory_are_never_the_same_input(tmp_path: Path) -> None:
    values = {"nodes": {"user": {"rows": pa.table({"id": ["a"]}), "id": "id"}}}
    spec, folder = checked_spec(values, "spec"), SourceFolder(tmp_path, {})
    assert fingerprint_of(spec, folder) != fingerprint_of(spec, folder)
