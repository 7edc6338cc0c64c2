"""Stages of a pass over nodes: chunks cover all rows in order, and rows are written whole."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path

import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.inference.stages import VALUES, Stage, row_table, write_rows

part_sizes = st.lists(st.integers(0, 40), min_size=1, max_size=6)


chunk_sizes = st.integers(1, 15)


def stage_of(sizes: list[int], chunk_size: int) -> Stage:
    bounds = tuple(accumulate(sizes, initial=0))
    return Stage(0, "node", bounds[-1], chunk_size, torch.empty(0, 2), pieces=bounds)


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
