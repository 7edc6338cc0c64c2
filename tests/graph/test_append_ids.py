"""Ids with new ones after them: the files that all ids at once give."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from khop import NodeTable, open_folder, open_ids, write_graph
from khop.graph.append_ids import append_ids
from khop.graph.folder_writer import FolderWriter
from khop.graph.given_ids import given_ids
from khop.graph.progress import Meter

TEXTS = st.lists(st.text(st.characters(codec="utf-8"), max_size=9), unique=True, max_size=40)
NUMBERS = st.lists(st.integers(-(2**63), 2**63 - 1), unique=True, max_size=40)


def of(values: list[str] | list[int]) -> list[str] | np.ndarray:  # type: ignore[type-arg]
    return values if values and isinstance(values[0], str) else np.array(values, np.int64)  # type: ignore[return-value]


@given(TEXTS.filter(lambda found: len(found) > 1) | NUMBERS.filter(lambda found: len(found) > 1), st.data())
def test_the_index_is_that_of_all_ids(values: list[str] | list[int], data: st.DataObject) -> None:
    first = data.draw(st.integers(1, len(values) - 1))
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        write_graph(path / "base", {"n": NodeTable(ids=of(values[:first]))}, {})
        write_graph(path / "whole", {"n": NodeTable(ids=of(values))}, {})
        base, out = open_folder(path / "base"), FolderWriter(path / "out", Meter(0))
        out.folder.mkdir()
        append_ids(base, base.manifest.node("n"), given_ids(of(values[first:]), "n"), out, 1 << 26, 1)
        assert dict(out.arrays) == dict(open_folder(path / "whole").manifest.arrays)


@pytest.mark.parametrize("file", ["bytes", "rows", "buckets"])
def test_damaged_ids_are_not_copied(tmp_path: Path, file: str) -> None:
    write_graph(tmp_path / "base", {"n": NodeTable(ids=[f"id-{i}" for i in range(20)])}, {})
    damaged = tmp_path / "base" / "nodes" / "n" / "ids" / f"{file}.npy"
    content = bytearray(damaged.read_bytes())
    content[-1 if file != "buckets" else -8] ^= 1
    damaged.write_bytes(content)
    base, out = open_folder(tmp_path / "base"), FolderWriter(tmp_path / "out", Meter(0))
    out.folder.mkdir()
    with pytest.raises(ValueError, match=r"checksum differs from graph.json"):
        append_ids(base, base.manifest.node("n"), given_ids(["new"], "n"), out, 1 << 26, 1)
    assert open_ids(tmp_path / "base", "n")
