"""Arrays of .npz files are streamed, from any position."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from khop.data.formats import raw_arrays as module
from khop.data.formats.raw_arrays import NpzArray


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_two_cursors_read_the_two_rows(save: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_BYTES", 100)
    values = np.arange(2000).reshape(2, 1000)
    save(tmp_path / "a.npz", edge_index=values, x=np.ones((7, 3), np.float16))  # type: ignore[operator]
    found = NpzArray.of(tmp_path / "a.npz", "edge_index")
    assert found.shape == (2, 1000)
    rows = [np.concatenate(list(found.numbers(row * 1000, 1000, 64))) for row in range(2)]
    assert np.array_equal(rows, values)
    assert np.array_equal(found.whole(), values)
    blocks = list(NpzArray.of(tmp_path / "a.npz", "x").blocks())
    assert len(blocks) == 1
    assert blocks[0].dtype == np.float16
    assert NpzArray.names(tmp_path / "a.npz") == ["edge_index", "x"]
    assert NpzArray.find(tmp_path / "a.npz", "y") is None


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", a=np.array([{}], object), b=np.asfortranarray(np.ones((2, 3))))
    with pytest.raises(ValueError, match="array a: holds Python objects, and reading them executes code"):
        NpzArray.of(tmp_path / "a.npz", "a")
    with pytest.raises(ValueError, match="array b: is damaged; download it again"):
        NpzArray.of(tmp_path / "a.npz", "b")
    with pytest.raises(ValueError, match="has no array 'c', but a, b"):
        NpzArray.of(tmp_path / "a.npz", "c")
    np.savez_compressed(tmp_path / "b.npz", a=np.arange(10_000))
    data = bytearray((tmp_path / "b.npz").read_bytes())
    data[2000] ^= 0xFF
    (tmp_path / "b.npz").write_bytes(data)
    with pytest.raises(ValueError, match="array a: is damaged"):
        NpzArray.of(tmp_path / "b.npz", "a").whole()
