"""Edges of the Illinois Graph Benchmark."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from data.formats.layouts import igb
from khop.data.formats.igb import igb_edges


def test_types_between_known_nodes_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("khop.data.formats.igb._EDGES_AT_ONCE", 2)
    pairs = igb(tmp_path)
    found = igb_edges(tmp_path / "processed", ("paper",))
    ((edge_type, chunks),) = found.items()
    assert (edge_type, chunks.reverse) == (("paper", "cites", "paper"), ("paper", "rev_cites", "paper"))
    tables = list(chunks.chunks)
    assert len(tables) == 3
    assert np.concatenate([table.sources for table in tables]).tolist() == pairs[:, 0].tolist()
    with pytest.raises(ValueError, match="has no SOURCE__RELATION__DESTINATION/edge_index.npy"):
        igb_edges(tmp_path, ("paper",))
    np.save(tmp_path / "processed" / "paper__cites__paper" / "edge_index.npy", np.zeros((2, 5), np.int64))
    with pytest.raises(ValueError, match=r"has shape \(2, 5\), and \(edges, 2\) is expected"):
        list(igb_edges(tmp_path / "processed", ("paper",))[edge_type].chunks)
