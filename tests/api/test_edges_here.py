"""Edges of this process, of a whole graph and of one rank with all partitions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

import khop
from khop.api.edges_here import edges_here, joined_rows
from support.one_rank import one_rank_graph
from support.small_typed_folders import BUYS, write_typed_graph


def test_all_edges_are_here_in_one_process(tmp_path: Path) -> None:
    folder = write_typed_graph(tmp_path / "shop")
    graph = khop.open_graph(folder)
    csc, rows = graph.csc(BUYS), torch.randn(200, 3)
    indptr, indices = edges_here(graph, BUYS)
    assert torch.equal(indptr, csc.indptr)
    assert torch.equal(indices, csc.indices.long())
    assert joined_rows(graph, "item")(rows) is rows


def test_a_rank_with_all_partitions_has_the_edges_of_each(tmp_path: Path) -> None:
    folder = write_typed_graph(tmp_path / "shop")
    khop.partition_graph(folder, tmp_path / "parts", 3, method="random")
    graph = khop.open_graph(tmp_path / "parts")
    far = replace(graph, rank_edges=one_rank_graph(tmp_path / "parts"))
    for found, expected in zip(edges_here(far, BUYS), edges_here(graph, BUYS), strict=True):
        assert torch.equal(found, expected)
    rows = torch.randn(200, 3, dtype=torch.float64)
    assert torch.equal(joined_rows(far, "item")(rows), rows)
