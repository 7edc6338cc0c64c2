"""Mapped .npy files, and raw float32 rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from khop.data.formats.raw_arrays import npy_array


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
