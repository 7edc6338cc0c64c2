"""Blocks of CSV rows come in order, and are invalid where a number is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from khop.data.formats.raw_arrays import csv_blocks, csv_width


def test_blocks_hold_all_rows_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("khop.data.formats.raw_arrays._BLOCK_BYTES", 256)
    path = tmp_path / "a.csv"
    path.write_text("".join(f"{row},{2 * row}\n" for row in range(500)))
    found = list(csv_blocks(path, "int64"))
    assert len(found) > 5
    assert np.concatenate(found).tolist() == [[row, 2 * row] for row in range(500)]
    assert csv_width(path) == 2


def test_an_empty_file_has_no_blocks(tmp_path: Path) -> None:
    (tmp_path / "a.csv").touch()
    assert list(csv_blocks(tmp_path / "a.csv", "int64")) == []


def test_a_null_is_no_whole_number(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,2\n3,\n")
    with pytest.raises(pa.ArrowInvalid):
        list(csv_blocks(tmp_path / "a.csv", "int64"))
    with pytest.raises(ValueError, match="b.csv: no such file; download it again"):
        list(csv_blocks(tmp_path / "b.csv", "int64"))
