"""CSV files without a header become one array, whole numbers or float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from data.formats.layouts import gz_rows
from khop.data.formats import raw_arrays as blocks
from khop.data.formats.raw_arrays import Scratch, csv_numbers


def test_whole_numbers_stay_whole_and_others_are_rounded_once_from_double(tmp_path: Path) -> None:
    gz_rows(tmp_path / "a.csv.gz", [[1, 1 << 60], [3, -4]])
    gz_rows(tmp_path / "b.csv.gz", [["1", "0.1"], ["nan", "1e-3"], ["", "2"]])
    assert csv_numbers(tmp_path / "a.csv.gz").tolist() == [[1, 1 << 60], [3, -4]]
    expected = np.array([[1, 0.1], [np.nan, 1e-3], [np.nan, 2]]).astype(np.float32)
    assert np.array_equal(csv_numbers(tmp_path / "b.csv.gz"), expected, equal_nan=True)


def test_a_fraction_after_many_whole_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_BLOCK_BYTES", 1 << 10)
    gz_rows(tmp_path / "a.csv.gz", [[row] for row in range(5000)] + [[0.5]])
    found = csv_numbers(tmp_path / "a.csv.gz", 5001)
    assert found.dtype == np.float32
    assert found[:, 0].tolist() == [*range(5000), 0.5]
    with Scratch.beside(tmp_path / "out", 0) as scratch:
        mapped = csv_numbers(tmp_path / "a.csv.gz", 5001, scratch)
        assert isinstance(mapped, np.memmap)
        assert np.array_equal(mapped, found)


def test_text_and_damage_are_named(tmp_path: Path) -> None:
    gz_rows(tmp_path / "a.csv.gz", [[1], ["x"]])
    with pytest.raises(
        ValueError, match=r"a.csv.gz: the value 'x' in the column 0 is not a number; download"
    ):
        csv_numbers(tmp_path / "a.csv.gz")
    gz_rows(tmp_path / "b.csv.gz", [[row] for row in range(100_000)])
    (tmp_path / "b.csv.gz").write_bytes((tmp_path / "b.csv.gz").read_bytes()[:-20_000])
    with pytest.raises(ValueError, match=r"b.csv.gz: "):
        csv_numbers(tmp_path / "b.csv.gz", 100_000)
    gz_rows(tmp_path / "c.csv.gz", [[1], [2]])
    with pytest.raises(ValueError, match="has 2 rows, and 3 are expected"):
        csv_numbers(tmp_path / "c.csv.gz", 3)
