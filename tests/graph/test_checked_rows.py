"""Rows that are compared with their checksum while they are read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from khop.graph.checked_rows import CheckedRows
from khop.graph.npy import write_array


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
