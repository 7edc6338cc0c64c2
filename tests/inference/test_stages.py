"""Stages of a pass over nodes: chunks cover all rows in order, and rows are written whole.

Chunks have bounded numbers of nodes and edges, and are as large as the bounds allow.

Rows of a stage in memory, of one process or in memory that several share.

Nodes are put together by their parts, and rows of them put back.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import khop.inference.stages as chunk_bounds
from khop.distributed.processes.group import ALONE
from khop.draw import DrawKey, FrontierByType, NeighborsByType
from khop.graph.rule import Hop
from khop.graph.store import GraphStoreBase, csc_graph_from_edges
from khop.inference.stages import (
    VALUES,
    ChunkBounds,
    ChunkLimits,
    MemoryStore,
    OwnRows,
    PartOrder,
    SharedRows,
    Stage,
    StageRows,
    chunk_starts,
    pieces_of,
    row_table,
    write_rows,
)
from khop.schema import Schema
from support.stages import chunk_sizes, part_sizes, stage_of


@given(part_sizes, chunk_sizes)
def test_chunks_are_all_rows_in_order_and_none_is_of_two_parts(sizes: list[int], chunk_size: int) -> None:
    stage = stage_of(sizes, chunk_size)
    spans = [stage.span(chunk) for chunk in range(stage.num_chunks)]
    assert [row for span in spans for row in range(span.start, span.stop)] == list(range(stage.count))
    assert [stage.size(chunk) for chunk in range(stage.num_chunks)] == [s.stop - s.start for s in spans]
    for span in spans:
        assert 0 < span.stop - span.start <= chunk_size
        assert any(first <= span.start and span.stop <= last for first, last in pairwise(stage.pieces))


def test_rows_are_described_and_written_as_an_array(tmp_path: Path) -> None:
    stage = Stage(1, "node", 4, 3, torch.empty(0, 2, dtype=torch.float64))
    assert (stage.row_bytes, stage.entry.dtype, stage.entry.shape) == (16, "float64", (4, 2))
    rows = torch.arange(8.0, dtype=torch.float64).view(4, 2)
    with (tmp_path / "rows").open("wb") as file:
        write_rows(file.fileno(), rows[2:], 2 * stage.row_bytes)
        write_rows(file.fileno(), rows[:2], 0)
    content = bytearray((tmp_path / "rows").read_bytes())
    assert torch.equal(torch.frombuffer(content, dtype=torch.float64).view(4, 2), rows)


def test_nodes_and_times_of_rows() -> None:
    every = Stage(0, "node", 5, 2, torch.empty(0, 1))
    assert every.nodes_of(slice(2, 4)).tolist() == [2, 3]
    assert every.times_of(slice(2, 4)) is None
    some = replace(every, nodes=torch.tensor([9, 7, 5, 3, 1]), times=torch.arange(5) * 10)
    assert some.nodes_of(slice(2, 4)).tolist() == [5, 3]
    times = some.times_of(slice(2, 4))
    assert times is not None
    assert times.tolist() == [20, 30]
    assert row_table({"node": torch.ones(3, 2)}).columns["node"][VALUES].shape == (3, 2)


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


DTYPES = [torch.float32, torch.bfloat16, torch.int64]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["own", "shared"])
def test_rows_put_in_any_order_come_back(dtype: torch.dtype, kind: str) -> None:
    stage = Stage(0, "node", 7, 2, torch.empty(0, 3, dtype=dtype))
    place: StageRows | None = OwnRows(stage, ALONE) if kind == "own" else SharedRows.opened(stage, ALONE)
    assert place is not None
    rows = torch.arange(21).view(7, 3).to(dtype)
    with closing(place):
        assert list(place.missing) == [0, 1, 2, 3]
        for chunk in (2, 0, 3, 1):
            place.put(chunk, rows[stage.span(chunk)])
        found = place.finished()
    assert torch.equal(found, rows)


def test_rows_are_the_input_of_the_next_layer() -> None:
    store = MemoryStore(ALONE)
    rows = {"user": torch.ones(2, 3), "item": torch.zeros(4, 3)}
    assert isinstance(store.open(Stage(0, "user", 2, 1, torch.empty(0, 3))), OwnRows)
    features = store.store([], rows)
    assert {t: tuple(specs) for t, specs in features.specs.items()} == {t: (VALUES,) for t in rows}
    assert features.local_rows("item") == range(4)


BOUNDS = (0, 10, 10, 25)


def test_nodes_of_a_part_come_together_and_their_rows_go_back() -> None:
    nodes = torch.tensor([12, 3, 24, 3, 10, 9])
    order = PartOrder.of(nodes, BOUNDS)
    there = order.there(nodes)
    assert there.tolist() == [3, 3, 9, 10, 12, 24]
    assert order.back(there).tolist() == nodes.tolist()
    assert pieces_of(there, BOUNDS) == (0, 3, 3, 6)


def test_nodes_that_stand_so_are_left_alone() -> None:
    for nodes, bounds in [(torch.tensor([1, 1, 20]), BOUNDS), (torch.tensor([9, 2]), (0, 25))]:
        order = PartOrder.of(nodes, bounds)
        assert order.there(nodes) is nodes
        assert order.back(nodes) is nodes
    assert PartOrder.of(None, BOUNDS) == PartOrder()


def test_pieces_of_all_nodes_are_the_parts_and_of_nodes_in_another_order_none() -> None:
    assert pieces_of(None, BOUNDS) == BOUNDS
    assert pieces_of(torch.tensor([12, 3]), BOUNDS) == ()
    assert pieces_of(torch.tensor([3, 12]), (0, 25)) == ()
    assert pieces_of(torch.empty(0, dtype=torch.int64), BOUNDS) == (0, 0, 0, 0)
