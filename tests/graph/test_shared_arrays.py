"""Arrays that a graph shares with another."""

from __future__ import annotations

import os
from pathlib import Path

from khop import NodeTable, open_folder, write_graph
from khop.graph.folder_writer import FolderWriter
from khop.graph.progress import Meter
from khop.graph.shared_arrays import share_files


def test_a_shared_array_has_its_entry(tmp_path: Path) -> None:
    base = open_folder(write_graph(tmp_path / "base", {"n": NodeTable(ids=["a", "b"])}, {}))
    out = FolderWriter(tmp_path / "out", Meter(0))
    share_files(base, out, ["nodes/n/ids/bytes.npy"])
    assert dict(out.arrays) == {"nodes/n/ids/bytes.npy": base.arrays["nodes/n/ids/bytes.npy"]}
    files = [folder / "nodes/n/ids/bytes.npy" for folder in (base.path, out.folder)]
    assert os.path.samefile(*files)
