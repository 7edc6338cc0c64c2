"""Arrays in .npy files: NumPy reads what khop writes, khop refuses what differs from its entry.

Rows that are compared with their checksum while they are read.

Shapes and dtypes that counts ask for.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.graph.npy import (
    ID_ARRAYS,
    STORED,
    ArrayEntry,
    CheckedRows,
    Expected,
    file_checksum,
    file_problem,
    header_of,
    map_array,
    map_numpy,
    row_chunks,
    torch_dtype,
    unchecked_entry,
    write_array,
)

SHAPES = st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple)


@given(dtype=st.sampled_from(list(STORED)), shape=SHAPES, pieces=st.integers(1, 3))
def test_numpy_reads_what_was_written_in_pieces(
    tmp_path_factory: pytest.TempPathFactory, dtype: str, shape: tuple[int, ...], pieces: int
) -> None:
    path = tmp_path_factory.mktemp("npy") / "deep" / "a.npy"
    array = np.arange(np.prod(shape)).reshape(shape).astype(STORED[dtype])
    wrote: list[int] = []
    entry = write_array(path, dtype, shape, np.array_split(array, pieces), wrote.append)
    assert np.array_equal(np.load(path), array)
    assert entry == ArrayEntry(
        dtype, shape, path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest()
    )
    assert sum(wrote) == entry.data_bytes
    assert file_problem(path, entry) is None
    assert file_checksum(path, lambda size: None) == entry.sha256
    assert unchecked_entry(dtype, shape) == ArrayEntry(dtype, shape, entry.bytes, "")
    with path.open("rb") as file:
        assert header_of(file) == (STORED[dtype], shape)
    mapped = map_array(path, entry)
    assert (mapped.dtype, tuple(mapped.shape)) == (torch_dtype(dtype), shape)
    assert np.array_equal(map_numpy(path, entry), array)


def test_writes_to_a_mapped_array_stay_private(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    entry = write_array(path, "int64", (3,), [np.arange(3)], lambda size: None)
    mapped = map_array(path, entry)
    mapped += 1
    assert mapped.tolist() == [1, 2, 3]
    assert np.load(path).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        (lambda: np.arange(4), "bytes, graph.json says"),
        (lambda: np.arange(6, dtype=np.int32), "holds <i4 of shape"),
        (lambda: np.arange(3).astype(">i8"), "holds >i8 of shape"),
        (lambda: np.arange(3.0), "holds <f8 of shape"),
    ],
)
def test_a_file_of_another_array_is_a_problem(tmp_path: Path, other: object, problem: str) -> None:
    path = tmp_path / "a.npy"
    np.save(path, other())  # type: ignore[operator]
    assert problem in (file_problem(path, unchecked_entry("int64", (3,))) or "")


def test_a_missing_file_and_a_damaged_header_are_problems(tmp_path: Path) -> None:
    path, entry = tmp_path / "a.npy", unchecked_entry("int64", (3,))
    assert file_problem(path, entry) == "is missing"
    np.save(path, np.arange(3))
    path.write_bytes(path.read_bytes().replace(b"{'descr'", b"{[descr'"))
    assert file_problem(path, entry) == "has no readable .npy header"


def test_chunks_are_all_rows_in_order() -> None:
    array = np.arange(3 << 20).reshape(-1, 4)
    chunks = list(row_chunks(array))
    assert len(chunks) > 1
    assert [start for start, _ in chunks] == list(np.cumsum([0, *(len(c) for _, c in chunks[:-1])]))
    assert np.array_equal(np.concatenate([chunk for _, chunk in chunks]), array)
    assert torch.equal(torch.from_numpy(chunks[0][1][:1]), torch.arange(4).view(1, 4))


@pytest.mark.parametrize("shape", [(5,), (5, 3), (0,), (5, 0)])
def test_rows_are_read_in_order(tmp_path: Path, shape: tuple[int, ...]) -> None:
    values = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
    entry = write_array(tmp_path / "a.npy", "float32", shape, [values], lambda _: None)
    rows = CheckedRows(tmp_path / "a.npy", entry)
    assert (len(rows), rows.row_bytes) == (shape[0], 4 * int(np.prod(shape[1:])))
    pieces = [rows.read(0, min(2, shape[0])), rows.read(min(2, shape[0]), shape[0])]
    np.testing.assert_array_equal(np.concatenate(pieces), values)


def test_damage_is_an_error_at_the_last_row(tmp_path: Path) -> None:
    file = tmp_path / "a.npy"
    entry = write_array(file, "int64", (4,), [np.arange(4)], lambda _: None)
    content = bytearray(file.read_bytes())
    content[-30] ^= 4
    file.write_bytes(content)
    rows = CheckedRows(file, entry)
    rows.read(0, 3)
    with pytest.raises(ValueError, match=r"a.npy: checksum differs from graph.json"):
        rows.read(3, 4)


def test_an_array_fits_by_rows_and_dtype() -> None:
    entry = ArrayEntry("int64", (3,), 152, "")
    assert Expected(3, ("int64",)).fits(entry)
    assert Expected(None, ("int32", "int64")).fits(entry)
    assert not Expected(4).fits(entry)
    assert not Expected(3, ("int32",)).fits(entry)
    assert str(Expected(3)) == "shape (3, ...)"


def test_ids_need_a_bucket_more_than_a_power_of_two() -> None:
    for kind in ("string", "int64"):
        assert ID_ARRAYS[kind](100)["buckets"].rows == 17
