"""Rows read from a file are those of its bytes, and a file that cannot be read is named with the row."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.kernels import file_rows
from khop.kernels.file_rows import DEAF, RowFile, read_file_rows, read_file_rows_reference
from khop.kernels.turns import Turns

DTYPES = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int64, torch.bfloat16, torch.float64)
HEADER = 64
LOCAL, NFS = 0xEF53, 0x6969


def stored(path: Path, table: torch.Tensor, file_system: int = LOCAL) -> RowFile:
    path.write_bytes(bytes(HEADER) + table.view(torch.uint8).numpy().tobytes())
    return RowFile.open(
        path, HEADER, table.shape[0], tuple(table.shape[1:]), table.dtype, lambda descriptor: file_system
    )


@pytest.mark.parametrize("file_system", [LOCAL, NFS])
@given(data=st.data())
def test_rows_are_those_of_the_reference(
    tmp_path_factory: pytest.TempPathFactory, file_system: int, data: st.DataObject
) -> None:
    dtype = data.draw(st.sampled_from(DTYPES))
    rows, width = data.draw(st.integers(1, 900)), data.draw(st.integers(1, 70))
    table = torch.randint(0, 2, (rows, width)).to(dtype)
    file = stored(tmp_path_factory.mktemp("table") / "x", table, file_system)
    ids = torch.tensor(sorted(data.draw(st.sets(st.integers(0, rows - 1)))), dtype=torch.int64)
    found = read_file_rows(file, ids, threads=data.draw(st.integers(1, 3)))
    assert torch.equal(found, read_file_rows_reference(file, ids))
    assert torch.equal(found, table[ids])


def test_numbers_without_a_shape_and_no_rows(tmp_path: Path) -> None:
    file = stored(tmp_path / "x", torch.arange(50))
    assert read_file_rows(file, torch.tensor([3, 4, 49])).tolist() == [3, 4, 49]
    assert read_file_rows(file, torch.tensor([], dtype=torch.int64)).shape == (0,)


def test_file_systems_that_ignore_announcements_are_read_by_threads(tmp_path: Path) -> None:
    table = torch.arange(4000).view(-1, 4)
    assert stored(tmp_path / "local", table).heeds_announcements
    for number in DEAF:
        assert not stored(tmp_path / "other", table, number).heeds_announcements
    assert RowFile.open(tmp_path / "local", HEADER, 1000, (4,), torch.int64).shape == (4,)


@pytest.mark.parametrize("file_system", [LOCAL, NFS])
def test_a_file_that_was_cut_short_is_named_with_its_first_missing_row(
    tmp_path: Path, file_system: int
) -> None:
    file = stored(tmp_path / "x", torch.arange(8000).view(-1, 4), file_system)
    os.truncate(tmp_path / "x", HEADER + 1000 * 32 + 5)
    ids = torch.arange(0, 2000, 3)
    assert read_file_rows(file, ids[:334])[-1].tolist() == [999 * 4 + at for at in range(4)]
    for read in (read_file_rows, read_file_rows_reference):
        with pytest.raises(ValueError, match=r"x: row 1,002 of 2,000 cannot be read: the file ends"):
            read(file, ids)


def test_an_error_of_the_disk_is_named(tmp_path: Path) -> None:
    """The memory of a process at address 0 stands for a broken disk: to read it is an I/O error."""
    file = RowFile.open(Path("/proc/self/mem"), 0, 9, (8,), torch.float32)
    with pytest.raises(ValueError, match=r"mem: row 2 of 9 cannot be read: Input/output error; the file was"):
        read_file_rows(file, torch.tensor([2, 7]))


def test_a_file_that_is_removed_keeps_its_rows_until_it_is_closed(tmp_path: Path) -> None:
    table = torch.arange(60).view(-1, 2)
    file = stored(tmp_path / "x", table)
    (tmp_path / "x").unlink()
    assert torch.equal(read_file_rows(file, torch.tensor([4, 20])), table[[4, 20]])
    descriptor = file.descriptor
    del file
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    with pytest.raises(FileNotFoundError):
        RowFile.open(tmp_path / "x", 0, 1, (1,), torch.int64)


def test_calls_for_one_file_take_turns(tmp_path: Path) -> None:
    table = torch.arange(60).view(-1, 2)
    file, other = stored(tmp_path / "x", table), stored(tmp_path / "y", table)
    with ThreadPoolExecutor(1) as pool:
        with file.turns.taken():
            waiting = pool.submit(read_file_rows, file, torch.tensor([4, 20]))
            assert torch.equal(read_file_rows(other, torch.tensor([7])), table[[7]])
            assert not waiting.done()
        assert torch.equal(waiting.result(timeout=60), table[[4, 20]])


def test_a_long_call_has_several_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken, begin = list[int](), Turns._begin
    monkeypatch.setattr(Turns, "_begin", lambda turns, place: (taken.append(place), begin(turns, place))[1])
    monkeypatch.setattr(file_rows, "TURN_ROWS", 7)
    table = torch.arange(60).view(-1, 2)
    file = stored(tmp_path / "x", table)
    ids = torch.arange(0, 30, 2)
    assert torch.equal(read_file_rows(file, ids), table[ids])
    assert len(taken) == 3
    os.truncate(tmp_path / "x", HEADER + 20 * 16)
    with pytest.raises(ValueError, match="row 20 of 30 cannot be read"):
        read_file_rows(file, ids)
