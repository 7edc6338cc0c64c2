"""Small tables with a header."""

from __future__ import annotations

from pathlib import Path

import pytest

from data.formats.layouts import gz_rows
from khop.data.formats.raw_arrays import csv_rows, csv_table


def test_columns_by_name(tmp_path: Path) -> None:
    gz_rows(tmp_path / "a.csv.gz", [["paper", "author"], [3, 2]])
    assert csv_table(tmp_path / "a.csv.gz") == {"paper": ["3"], "author": ["2"]}
    assert csv_rows(tmp_path / "a.csv.gz") == [["paper", "author"], ["3", "2"]]


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such file; give the folder as it was published"):
        csv_table(tmp_path / "a.csv.gz")
    gz_rows(tmp_path / "a.csv.gz", [["a", "b"], [1]])
    with pytest.raises(ValueError, match="different numbers of fields"):
        csv_table(tmp_path / "a.csv.gz")
    gz_rows(tmp_path / "b.csv.gz", [["a", "b"]])
    with pytest.raises(ValueError, match="has 1 rows, and a header and values are expected"):
        csv_table(tmp_path / "b.csv.gz")
    (tmp_path / "c.csv.gz").write_bytes(b"plain")
    with pytest.raises(ValueError, match=r"c.csv.gz: is damaged, or has another format"):
        csv_table(tmp_path / "c.csv.gz")
