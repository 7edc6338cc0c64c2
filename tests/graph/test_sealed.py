"""Sealed arrays: read where graph, sources and bytes are those of the seal, else not at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from khop.graph.derived import Seal, Source, read_sealed, sealed_problem, source_of, write_sealed
from khop.graph.npy import unchecked_entry, write_array

VALUES = torch.arange(40) * 3
ENTRY = unchecked_entry("int64", (40,))


@pytest.fixture
def seal(tmp_path: Path) -> Seal:
    """The seal of an array that is derived from a primary array."""
    file = tmp_path / "primary.npy"
    primary = write_array(file, "int64", (5,), [np.arange(5)], lambda size: None)
    return Seal("a", "f" * 64, {"primary.npy": source_of(file, primary)})


def test_the_array_is_read_again_and_by_numpy(tmp_path: Path, seal: Seal) -> None:
    file = tmp_path / "derived" / "a.npy"
    assert torch.equal(write_sealed(file, ENTRY, VALUES.split(7), seal), VALUES)
    found = read_sealed(file, ENTRY, seal)
    assert found is not None
    assert torch.equal(found, VALUES)
    assert np.array_equal(np.load(file), VALUES.numpy())
    assert list(file.parent.iterdir()) == [file]


def test_another_name_graph_source_shape_or_bit_is_not_read(tmp_path: Path, seal: Seal) -> None:
    file = tmp_path / "a.npy"
    write_sealed(file, ENTRY, [VALUES], seal)
    others = {name: {**source, "xxh64": "0" * 16} for name, source in seal.sources.items()}
    for changed in (replace(seal, name="b"), replace(seal, graph="e" * 64), replace(seal, sources=others)):
        assert read_sealed(file, ENTRY, changed) is None
    assert read_sealed(file, unchecked_entry("int64", (20, 2)), seal) is None
    good = file.read_bytes()
    for at in (*range(0, len(good), 11), len(good) - 1):
        file.write_bytes(good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :])
        assert read_sealed(file, ENTRY, seal) is None
    assert read_sealed(tmp_path / "missing.npy", ENTRY, seal) is None


def test_a_seal_is_checked_by_what_the_file_says(tmp_path: Path, seal: Seal) -> None:
    file = tmp_path / "a.npy"
    write_sealed(file, ENTRY, [VALUES], seal)

    def of(name: str) -> Source:
        return seal.sources[name]

    assert sealed_problem(file, "a", seal.graph, of) is None
    assert sealed_problem(file, "b", seal.graph, of) is not None
    assert sealed_problem(file, "a", "e" * 64, of) is not None
    file.write_bytes(file.read_bytes()[:-3])
    assert sealed_problem(file, "a", seal.graph, of) is not None


def test_a_failed_write_leaves_the_file_as_it_was(tmp_path: Path, seal: Seal) -> None:
    file = tmp_path / "a.npy"
    write_sealed(file, ENTRY, [VALUES], seal)
    good = file.read_bytes()
    with pytest.raises(AssertionError):
        write_sealed(file, ENTRY, [VALUES[:-1]], seal)
    assert file.read_bytes() == good
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npy", "primary.npy"]
