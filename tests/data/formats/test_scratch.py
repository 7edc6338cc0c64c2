"""Large arrays lie in a folder that goes away."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from khop.data.formats.raw_arrays import Scratch


@pytest.mark.parametrize("most", [0, 1 << 20])
def test_arrays_are_filled_in_memory_or_in_a_file(most: int, tmp_path: Path) -> None:
    blocks = [np.arange(4).reshape(2, 2), np.arange(4, 6).reshape(1, 2)]
    with Scratch.beside(tmp_path / "graphs" / "out", most) as scratch:
        made = scratch.filled((3, 2), "int32", iter(blocks), "a")
        assert isinstance(made, np.memmap) == (most == 0)
        assert made.tolist() == [[0, 1], [2, 3], [4, 5]]
        for shape in ((2, 2), (4, 2)):
            with pytest.raises(ValueError, match=f"a: has 3 rows, and {shape[0]} are expected"):
                scratch.filled(shape, "int32", iter(blocks), "a")
    assert list((tmp_path / "graphs").iterdir()) == []
