"""Blocks of edges of a raw folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from data.formats.layouts import arxiv, gz_rows
from khop.data.formats.ogb import OgbRaw, edge_table, only_count
from khop.data.formats.raw_arrays import Scratch


def test_an_edge_is_followed_by_its_opposite_as_in_ogbs_own_reader() -> None:
    columns = {"w": np.array([5, 6])}
    table = edge_table((np.array([0, 1]), np.array([2, 3])), columns, "both directions")
    assert (table.sources.tolist(), table.destinations.tolist()) == ([0, 2, 1, 3], [2, 0, 3, 1])
    assert table.columns["w"].tolist() == [5, 5, 6, 6]


def test_counts_must_agree(tmp_path: Path) -> None:
    raw = arxiv(tmp_path) / "raw"
    gz_rows(raw / "num-edge-list.csv.gz", [[5]])
    with Scratch.beside(tmp_path / "out", 1 << 20) as scratch:
        read = OgbRaw.read(raw, scratch, "as stored")
        with pytest.raises(ValueError, match=r"edge.csv.gz: has 4 edges, num-edge-list says 5"):
            list(read.edges())
    gz_rows(raw / "num-node-list.csv.gz", [[2], [3]])
    with pytest.raises(ValueError, match="the set has 2 graphs"):
        only_count(raw / "num-node-list.csv.gz")
