"""Splits of links: every link is in one part, both directions of a pair together, however rows are cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from khop.draw import DrawKey
from khop.graph.csc_graph import CscGraph, csc_graph_from_edges
from khop.kernels.csc import Csc
from khop.sampling.link_split import Chosen, Counted, EdgeRange, Shares, WholeEdges, split_edges
from khop.schema import EdgeType, NodeType, Schema

LIKE = ("item", "like", "item")
PAIRS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=4, max_size=30)


def graph_of(pairs: list[tuple[int, int]]) -> CscGraph:
    return csc_graph_from_edges({"item": 6}, {LIKE: (torch.tensor(pairs)[:, 0], torch.tensor(pairs)[:, 1])})


@dataclass(frozen=True)
class InTwoRanges:
    """The edges of a graph as two ranges of rows."""

    graph: CscGraph
    cut: int

    @property
    def schema(self) -> Schema:
        return self.graph.schema

    @property
    def original_ids(self) -> Mapping[NodeType, Tensor]:
        return self.graph.originals

    def edge_ranges(self, edge_type: EdgeType) -> Sequence[EdgeRange]:
        csc, at = self.graph.csc(edge_type), int(self.graph.csc(edge_type).indptr[self.cut])
        first = Csc(csc.indptr[: self.cut + 1], csc.indices[:at], csc.num_sources)
        rest = Csc(csc.indptr[self.cut :] - at, csc.indices[at:], csc.num_sources)
        return EdgeRange(first), EdgeRange(rest, self.cut)

    def total(self, counts: Tensor, of: Counted) -> Tensor:
        return counts


def positions(chosen: Chosen, first: int = 0) -> list[int]:
    """Positions in all rows, of a split of the rows from position `first` on."""
    own, *rest = chosen[LIKE]
    return own.tolist() + [position + first for of_range in rest for position in of_range.tolist()]


@given(
    pairs=PAIRS,
    key=st.integers(0, 2**64 - 1),
    cut=st.integers(0, 6),
    disjoint=st.sampled_from([0.0, 0.5]),
)
@example(pairs=[(0, 0), (0, 0), (0, 0), (0, 1)], key=1, cut=0, disjoint=0.5)  # copies fill validation
def test_every_link_is_of_one_part_and_no_message_of_a_later_one(
    pairs: list[tuple[int, int]], key: int, cut: int, disjoint: float
) -> None:
    graph, shares = graph_of(pairs), Shares(1, 1, disjoint)
    split = split_edges(WholeEdges(graph), [LIKE], shares, DrawKey(key))
    train, val, test = (positions(part.links) for part in (split.train, split.val, split.test))
    assert not set(train) & set(val) | set(val) & set(test) | set(train) & set(test)
    ends = EdgeRange(graph.csc(LIKE)).ends(torch.arange(len(pairs))).T.tolist()
    pair_of = [frozenset(edge) for edge in ends]
    for asked, part in ((val, split.val), (test, split.test)):
        heard = {pair_of[edge] for edge in positions(part.kept)}
        assert not heard & {pair_of[edge] for edge in asked}
    if not disjoint:
        assert sorted(train + val + test) == list(range(len(pairs)))
        assert positions(split.train.kept) == train
    else:
        heard = {pair_of[edge] for edge in positions(split.train.kept)}
        assert not heard & {pair_of[edge] for edge in train}
    in_ranges = split_edges(InTwoRanges(graph, cut), [LIKE], shares, DrawKey(key))
    at = int(graph.csc(LIKE).indptr[cut])
    for name in ("train", "val", "test"):
        part, of_ranges = getattr(split, name), getattr(in_ranges, name)
        assert positions(of_ranges.links, at) == positions(part.links)
        assert positions(of_ranges.kept, at) == positions(part.kept)


@pytest.mark.parametrize("share", [-0.1, 1.0, True, "0.1", float("nan")])
def test_a_share_that_is_none_is_named(share: float) -> None:
    with pytest.raises(ValueError, match=r"val .*: must be a share from 0 to below 1, or a number of links"):
        Shares(share, 0.1)


def test_parts_that_leave_training_nothing_are_refused() -> None:
    assert Shares(2, 0.25, 0.5).counts(LIKE, 12) == (2, 3, 3)
    assert Shares(1, 1, 0.5).counts(LIKE, 3) == (1, 1, 1)
    with pytest.raises(ValueError, match="leave training none"):
        Shares(6, 6).counts(LIKE, 12)
    with pytest.raises(ValueError, match="there are none to split"):
        Shares(0.1, 0.1).counts(LIKE, 0)
