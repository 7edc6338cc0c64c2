"""Measured choices in files: read as they were written, or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from khop.kernels.linear_blocks import Blocks
from khop.kernels.linear_measure import Measured
from khop.kernels.linear_record import blocks_of, keep_record, read_record, values_of

WAY, OTHER = Measured(Blocks("blas", 2048)), Measured(None, 0.5)


@given(library=st.sampled_from(["blas", "onednn"]), rows=st.integers(64, 1 << 20), widened=st.booleans())
def test_a_choice_is_read_as_it_was_written(library: str, rows: int, widened: bool) -> None:
    blocks = Blocks(library, rows, widened)  # type: ignore[arg-type]
    assert blocks_of(json.loads(json.dumps(values_of(blocks)))) == blocks
    assert blocks_of(json.loads(json.dumps(values_of(None)))) is None


def test_the_first_record_of_a_key_stays(tmp_path: Path) -> None:
    path = tmp_path / "new" / "record.json"
    assert keep_record(path, "key", WAY) == WAY
    assert keep_record(path, "key", OTHER) == WAY
    assert read_record(path, "key") == WAY
    assert read_record(path, "another key") is None
    assert keep_record(path, "another key", OTHER) == OTHER
    assert list(path.parent.iterdir()) == [path]


def damaged_versions(content: bytes) -> list[bytes]:
    found = json.loads(content)
    changed: list[object] = [
        {**found, "format": 1},
        {**found, "blocks": {"library": "magic", "rows": 2048, "in_float32": False}},
        {**found, "blocks": {"library": "blas", "rows": 0, "in_float32": False}},
        {**found, "blocks": {"library": "blas", "rows": True, "in_float32": False}},
        {**found, "blocks": {"library": "blas", "rows": 2048}},
        {**found, "blocks": [1]},
        {**found, "over_float32": "1"},
        {**found, "over_float32": float("nan")},
        {name: value for name, value in found.items() if name != "over_float32"},
        [found],
        7,
    ]
    cut = [content[:end] for end in range(0, len(content) - 2, 7)]
    return [b"", b"\x00" * 64, b"[" * 100_000, b"\xff\xfe", *cut, *(json.dumps(c).encode() for c in changed)]


def test_a_damaged_file_is_not_read_and_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    keep_record(path, "key", OTHER)
    for content in damaged_versions(path.read_bytes()):
        path.write_bytes(content)
        assert read_record(path, "key") is None, content[:60]
        assert keep_record(path, "key", WAY) == WAY
        assert read_record(path, "key") == WAY
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_system_without_links_has_whole_files_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "record.json"
    assert keep_record(path, "key", WAY) == WAY
    assert read_record(path, "key") == WAY
    assert list(tmp_path.iterdir()) == [path]
