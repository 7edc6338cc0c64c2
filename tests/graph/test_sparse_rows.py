"""Arrays for reads of single rows have the contents of the file, as arrays for other reads do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from khop.graph.npy import map_array, write_array
from khop.graph.sparse_rows import map_sparse_array


@pytest.mark.parametrize("rows", [0, 1, 5000])
def test_rows_are_those_of_the_file(tmp_path: Path, rows: int) -> None:
    path, array = tmp_path / "a.npy", np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
    entry = write_array(path, "float32", (rows, 3), [array], lambda size: None)
    found = map_sparse_array(path, entry)
    assert torch.equal(found, map_array(path, entry))
    assert np.array_equal(found.numpy(), array)
    found += 1
    assert np.array_equal(np.load(path), array)
