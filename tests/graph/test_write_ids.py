"""The index of ids in files: the one of NumPy, for any threads, budget and chunks."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from khop.graph.folder_writer import FolderWriter
from khop.graph.given_ids import kind_of
from khop.graph.progress import Meter
from khop.graph.write_ids import sliced, table_chunks, write_ids
from khop.kernels.id_table import Keys, StringKeys, id_table
from support.key_indexes import key_index_of

TEXT = StringKeys.of([f"name {n * 31}" for n in range(20_000)])
NUMBERS = np.arange(20_000) * 977 - 5


@pytest.mark.parametrize("keys", [TEXT, NUMBERS, TEXT[:0], TEXT[7:9]], ids=["text", "numbers", "none", "two"])
def test_neither_threads_nor_budget_nor_chunks_change_a_bit(keys: Keys, tmp_path: Path) -> None:
    index = key_index_of(keys)
    entries = []
    for number, (memory, threads, step) in enumerate(
        ((1 << 16, 1, 700), (1 << 16, 3, 9000), (1 << 30, 2, 10**6))
    ):
        folder = tmp_path / str(number)
        writer = FolderWriter(folder, Meter(0))
        chunks = [keys[first : first + step] for first in range(0, len(keys), step)]
        write_ids(writer, "user", kind_of(keys), lambda chunks=chunks: chunks, folder, memory, threads)
        for name in ("buckets", "rows", "tags"):
            assert np.array_equal(np.load(folder / f"nodes/user/ids/{name}.npy"), getattr(index, name))
        entries.append(writer.arrays)
        assert [path.name for path in folder.iterdir()] == ["nodes"]
    assert entries[0] == entries[1] == entries[2]


def test_a_table_gives_its_keys_in_order(tmp_path: Path) -> None:
    table = id_table("string")
    table.append(TEXT)
    files = []
    for name, chunks in (("table", partial(table_chunks, table)), ("keys", partial(sliced, TEXT))):
        writer = FolderWriter(tmp_path / name, Meter(0))
        write_ids(writer, "user", "string", chunks, tmp_path, 1 << 20, 1)
        files.append(writer.arrays)
    assert files[0] == files[1]
