"""Arrays written piece by piece equal those written at once.

Arrays that a graph shares with another.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from khop import NodeTable, open_folder, write_graph
from khop.graph.atomic import Meter
from khop.graph.folder_writer import FolderWriter, share_files


def test_pieces_make_the_same_file_and_entry_as_one_write(tmp_path: Path) -> None:
    rows = np.arange(60, dtype=np.int32).reshape(20, 3)
    seen: list[tuple[str, int, int]] = []
    writer = FolderWriter(tmp_path, Meter(480, lambda *progress: seen.append(progress)))
    whole = writer.array("a/whole.npy", "float32", (20, 3), [rows[:7], rows[7:]])
    array = writer.open_array("a/pieces.npy", "float32", (20, 3))
    for first in range(0, 20, 6):
        array.write(rows[first : first + 6])
    assert array.close() == whole
    assert writer.arrays == {"a/whole.npy": whole, "a/pieces.npy": whole}
    assert (tmp_path / "a/whole.npy").read_bytes() == (tmp_path / "a/pieces.npy").read_bytes()
    assert np.array_equal(np.load(tmp_path / "a/pieces.npy"), rows)
    assert seen[-1] == ("a/pieces.npy", 480, 480)


def test_a_removed_array_leaves_no_trace(tmp_path: Path) -> None:
    writer = FolderWriter(tmp_path, Meter(0))
    writer.array("x.npy", "bool", (1,), [np.array([True])])
    writer.remove("x.npy")
    assert writer.arrays == {}
    assert list(tmp_path.iterdir()) == []


def test_an_array_with_too_few_rows_is_not_closed(tmp_path: Path) -> None:
    array = FolderWriter(tmp_path, Meter(0)).open_array("x.npy", "int64", (2,))
    array.write(np.zeros(1, np.int64))
    with pytest.raises(AssertionError):
        array.close()


def test_a_shared_array_has_its_entry(tmp_path: Path) -> None:
    base = open_folder(write_graph(tmp_path / "base", {"n": NodeTable(ids=["a", "b"])}, {}))
    out = FolderWriter(tmp_path / "out", Meter(0))
    share_files(base, out, ["nodes/n/ids/bytes.npy"])
    assert dict(out.arrays) == {"nodes/n/ids/bytes.npy": base.arrays["nodes/n/ids/bytes.npy"]}
    files = [folder / "nodes/n/ids/bytes.npy" for folder in (base.path, out.folder)]
    assert os.path.samefile(*files)
