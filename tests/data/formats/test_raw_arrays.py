"""Arrays of published sets: CSV files, .npy and .npz files, read in blocks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from data.formats.layouts import gz_rows
from khop.data.formats import raw_arrays as module
from khop.data.formats.raw_arrays import (
    Scratch,
    csv_blocks,
    csv_numbers,
    csv_rows,
    csv_table,
    csv_width,
    npy_array,
    npz_array,
    npz_names,
)


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


def test_whole_numbers_stay_whole_and_others_are_rounded_once_from_double(tmp_path: Path) -> None:
    gz_rows(tmp_path / "a.csv.gz", [[1, 1 << 60], [3, -4]])
    gz_rows(tmp_path / "b.csv.gz", [["1", "0.1"], ["nan", "1e-3"], ["", "2"]])
    assert csv_numbers(tmp_path / "a.csv.gz").tolist() == [[1, 1 << 60], [3, -4]]
    expected = np.array([[1, 0.1], [np.nan, 1e-3], [np.nan, 2]]).astype(np.float32)
    assert np.array_equal(csv_numbers(tmp_path / "b.csv.gz"), expected, equal_nan=True)


def test_a_fraction_after_many_whole_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BLOCK_BYTES", 1 << 10)
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
    with pytest.raises(ValueError, match="has 2 rows, but 3 are expected"):
        csv_numbers(tmp_path / "c.csv.gz", 3)


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
    with pytest.raises(ValueError, match="has 1 rows, but a header and values are expected"):
        csv_table(tmp_path / "b.csv.gz")
    (tmp_path / "c.csv.gz").write_bytes(b"plain")
    with pytest.raises(ValueError, match=r"c.csv.gz: is damaged, or has another format"):
        csv_table(tmp_path / "c.csv.gz")


def test_files_with_and_without_a_header(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.save(tmp_path / "a.npy", values)
    values.tofile(tmp_path / "raw.npy")
    assert np.array_equal(npy_array(tmp_path / "a.npy", 3), values)
    assert np.array_equal(npy_array(tmp_path / "raw.npy", 3), values)
    for width in (None, 4):
        with pytest.raises(ValueError, match="raw.npy: is damaged, or not a .npy file"):
            npy_array(tmp_path / "raw.npy", width)
    np.save(tmp_path / "o.npy", np.array([{}], object))
    with pytest.raises(ValueError, match="o.npy: is damaged, or not a .npy file"):
        npy_array(tmp_path / "o.npy", 1)
    with pytest.raises(ValueError, match="no such file"):
        npy_array(tmp_path / "b.npy")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_of_an_archive_are_mapped(save: Callable[..., None], tmp_path: Path) -> None:
    values = np.arange(2000).reshape(2, 1000)
    save(tmp_path / "a.npz", edge_index=values, x=np.ones((7, 3), np.float16, "F"))
    found = npz_array(tmp_path / "a.npz", "edge_index", tmp_path / "unpacked")
    assert isinstance(found, np.memmap)
    assert np.array_equal(found, values)
    assert npz_array(tmp_path / "a.npz", "x", tmp_path / "unpacked").dtype == np.float16
    assert npz_names(tmp_path / "a.npz") == ["edge_index", "x"]


def test_a_wrong_array_of_an_archive_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", a=np.array([{}], object))
    with pytest.raises(ValueError, match="array a: has Python objects, and reading them executes code"):
        npz_array(tmp_path / "a.npz", "a", tmp_path / "unpacked")
    with pytest.raises(ValueError, match="has no array 'c', but a"):
        npz_array(tmp_path / "a.npz", "c", tmp_path / "unpacked")
    np.savez_compressed(tmp_path / "b.npz", a=np.arange(10_000))
    data = bytearray((tmp_path / "b.npz").read_bytes())
    data[2000] ^= 0xFF
    (tmp_path / "b.npz").write_bytes(data)
    with pytest.raises(ValueError, match="array a: is damaged"):
        npz_array(tmp_path / "b.npz", "a", tmp_path / "unpacked")


@pytest.mark.parametrize("most", [0, 1 << 20])
def test_arrays_are_filled_in_memory_or_in_a_file(most: int, tmp_path: Path) -> None:
    blocks = [np.arange(4).reshape(2, 2), np.arange(4, 6).reshape(1, 2)]
    with Scratch.beside(tmp_path / "graphs" / "out", most) as scratch:
        made = scratch.filled((3, 2), "int32", iter(blocks), "a")
        assert isinstance(made, np.memmap) == (most == 0)
        assert made.tolist() == [[0, 1], [2, 3], [4, 5]]
        for shape in ((2, 2), (4, 2)):
            with pytest.raises(ValueError, match=f"a: has 3 rows, but {shape[0]} are expected"):
                scratch.filled(shape, "int32", iter(blocks), "a")
    assert list((tmp_path / "graphs").iterdir()) == []
