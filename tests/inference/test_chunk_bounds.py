"""Chunks have bounded numbers of nodes and edges, and are as large as the bounds allow."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import khop.inference.chunk_bounds as chunk_bounds
from khop.draw import DrawKey, FrontierByType, NeighborsByType
from khop.graph.csc_graph import csc_graph_from_edges
from khop.graph.store import GraphStoreBase
from khop.inference.chunk_bounds import ChunkBounds, ChunkLimits, chunk_starts
from khop.rules.rule import Hop
from khop.schema import Schema

LIKE = ("node", "like", "node")
ROWS = torch.empty(0, 2)


def expected_starts(pieces: list[int], limits: ChunkLimits, degrees: list[int]) -> list[int]:
    """Take one row after another, and begin a chunk where the next row would not fit."""
    starts = []
    for first, last in pairwise(pieces):
        rows = edges = 0
        for row in range(first, last):
            if row == first or rows == limits.nodes or edges + degrees[row] > limits.edges:
                starts.append(row)
                rows = edges = 0
            rows, edges = rows + 1, edges + degrees[row]
    return [*starts, pieces[-1]]


@given(
    st.lists(st.lists(st.integers(0, 9) | st.just(50), max_size=30), min_size=1, max_size=4),
    st.integers(1, 12),
    st.integers(1, 40),
    st.integers(1, 20),
)
def test_a_chunk_ends_where_the_next_row_does_not_fit(
    parts: list[list[int]], nodes: int, edges: int, at_once: int
) -> None:
    degrees = [degree for part in parts for degree in part]
    pieces, limits = [0, *accumulate(map(len, parts))], ChunkLimits(nodes, edges)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk_bounds, "ROWS_AT_ONCE", at_once)
        found = chunk_starts(pieces, limits, lambda rows: torch.tensor(degrees[rows], dtype=torch.int64))
    assert list(found) == expected_starts(pieces, limits, degrees)


def test_a_stage_has_the_chunks_of_its_nodes() -> None:
    into = torch.tensor([0, 0, 0, 0, 1, 2, 2, 4])
    graph = csc_graph_from_edges({"node": 5}, {LIKE: (torch.zeros_like(into), into)})
    bounds = ChunkBounds(graph, graph.schema.edge_types, ChunkLimits(3, 3))
    every = bounds.stage(0, "node", ROWS, None)
    assert [every.nodes_of(every.span(chunk)).tolist() for chunk in range(every.num_chunks)] == [
        [0],
        [1, 2, 3],
        [4],
    ]
    some = bounds.stage(1, "node", ROWS, torch.tensor([4, 2, 0, 0, 3, 1]))
    assert [some.nodes_of(some.span(chunk)).tolist() for chunk in range(some.num_chunks)] == [
        [4, 2],
        [0],
        [0],
        [3, 1],
    ]


def test_chunks_of_a_graph_without_known_degrees_have_a_number_of_nodes() -> None:
    class Drawn(GraphStoreBase):
        schema = Schema(("node",), (LIKE,))

        def num_nodes(self, node_type: str) -> int:
            return 5

        def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
            raise AssertionError

    stage = ChunkBounds(Drawn(), [LIKE], ChunkLimits(2, 1)).stage(0, "node", ROWS, None)
    assert stage.starts == (0, 2, 4, 5)


def test_limits_are_positive() -> None:
    assert replace(ChunkLimits(1), nodes=2).edges == 1 << 20
    for nodes, edges in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match="must be"):
            ChunkLimits(nodes, edges)
