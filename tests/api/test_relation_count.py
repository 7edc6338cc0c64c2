"""Relations are counted in their column."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import khop
from support.knowledge import BACK, FACT, RELATIONS, Triples, as_column


def test_the_count_is_the_largest_number_plus_one(tmp_path: Path) -> None:
    graph = as_column(tmp_path / "graph", Triples.drawn())
    assert khop.relation_count(graph, FACT, "r") == RELATIONS
    assert khop.relation_count(graph, " ".join(BACK), "r") == RELATIONS
    assert torch.equal(graph.edge_values(FACT, "r", torch.arange(5)), graph.columns[FACT]["r"][:5])


def test_unfit_columns_are_errors(tmp_path: Path) -> None:
    ends = torch.arange(3)
    columns = {"r": torch.tensor([0, -2, 1]), "w": torch.rand(3)}
    table = {FACT: khop.EdgeTable(ends, ends, columns)}
    graph = khop.open_graph(khop.write_graph(tmp_path / "graph", {"entity": khop.NodeTable(3)}, table))
    with pytest.raises(ValueError, match="relation -2 is below 0; number relations from 0 on"):
        khop.relation_count(graph, FACT, "r")
    with pytest.raises(
        ValueError, match=r"is float32 of shape .*: relations are whole numbers, one per edge"
    ):
        khop.relation_count(graph, FACT, "w")
    with pytest.raises(ValueError, match="not in the graph"):
        khop.relation_count(graph, FACT, "q")
