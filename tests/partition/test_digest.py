"""Digests of edges: equal sums over any parts, different after any change of an edge or its place."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.kernels.csc import Csc
from khop.partition.digest import edge_digest

ROWS = st.lists(st.lists(st.integers(0, 6), max_size=4), min_size=1, max_size=7)
WORD = (1 << 64) - 1


def csc_of(rows: list[list[int]]) -> Csc:
    degrees = torch.tensor([0, *map(len, rows)])
    return Csc(degrees.cumsum(0), torch.tensor([s for row in rows for s in row], dtype=torch.int64), 7)


@given(
    rows=ROWS, parts=st.lists(st.integers(0, 2), min_size=7, max_size=7), sources=st.permutations(range(7))
)
def test_parts_in_another_numbering_sum_up_to_the_graph(
    rows: list[list[int]], parts: list[int], sources: list[int]
) -> None:
    whole = edge_digest(csc_of(rows), None, None)
    renumbered = [[sources.index(source) for source in row] for row in rows]
    total = 0
    for part in range(3):
        own = [row for row in range(len(rows)) if parts[row] == part]
        if own:
            of_part = csc_of([renumbered[row] for row in own])
            total += edge_digest(of_part, torch.tensor(sources), torch.tensor(own))
    assert total & WORD == whole


@given(rows=ROWS, place=st.integers(0, 40), source=st.integers(0, 6))
def test_one_other_source_changes_the_digest(rows: list[list[int]], place: int, source: int) -> None:
    changed = [list(row) for row in rows]
    edges = [(row, at) for row, of_row in enumerate(rows) for at in range(len(of_row))]
    if edges:
        row, at = edges[place % len(edges)]
        changed[row][at] = source
    is_equal = edge_digest(csc_of(rows), None, None) == edge_digest(csc_of(changed), None, None)
    assert is_equal is (changed == rows)


def test_the_place_in_a_row_counts() -> None:
    def digest(*row: int) -> int:
        return edge_digest(csc_of([list(row)]), None, torch.tensor([3]))

    assert len({digest(0, 1, 2), digest(1, 0, 2), digest(0, 1), digest(0, 0, 1)}) == 4
