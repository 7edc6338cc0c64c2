"""Graphs in memory from arrays."""

from __future__ import annotations

import pytest
import torch

from khop.api.graph_from import EDGE, NODE, MemoryEdges, memory_graph


def test_columns_follow_their_edges() -> None:
    edges = MemoryEdges(torch.tensor([0, 1, 2]), torch.tensor([2, 0, 2]), {"w": torch.tensor([7, 8, 9])})
    graph = memory_graph({NODE: 3}, {EDGE: edges}, {NODE: {"x": torch.ones(3, 1)}})
    assert graph.csc(EDGE).indices.tolist() == [1, 0, 2]
    assert graph.columns[EDGE]["w"].tolist() == [8, 7, 9]
    assert graph.columns[NODE]["x"].shape == (3, 1)
    with pytest.raises(ValueError, match="destination id 2 at position 0"):
        memory_graph({NODE: 2}, {EDGE: edges}, {})
