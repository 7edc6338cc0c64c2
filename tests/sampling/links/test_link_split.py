"""Splits of links: every link is in one part, both directions of a pair together, however rows are cut.

Splits by time and by a column, against sums over single edges.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from khop.draw import DrawKey
from khop.graph.folder import TimeCutOffs
from khop.graph.store import CscGraph, csc_graph_from_edges
from khop.kernels.csc import Csc
from khop.sampling.links.link_split import (
    Chosen,
    CountedLinks,
    EdgeRange,
    EdgeSplit,
    Shares,
    WholeEdges,
    check_parts,
    edge_times,
    nodes_before,
    nodes_with_edges_before,
    positions_before,
    split_by_column,
    split_by_time,
    split_edges,
)
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
    is_whole: ClassVar[bool] = True

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

    def total(self, counts: Tensor, of: CountedLinks) -> Tensor:
        return counts

    def num_nodes(self, node_type: NodeType) -> int:
        return self.graph.num_nodes(node_type)

    def edge_column(self, edge_type: EdgeType, name: str) -> None:
        return None

    def node_column(self, node_type: NodeType, name: str) -> None:
        return None


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
    with pytest.raises(ValueError, match="leave no links for training"):
        Shares(6, 6).counts(LIKE, 12)
    with pytest.raises(ValueError, match="there are none to split"):
        Shares(0.1, 0.1).counts(LIKE, 0)


BUYS, LIKES = ("user", "buys", "item"), ("user", "likes", "item")
days = st.integers(-3, 12)
Rows = list[tuple[int, int, int, int]]  # user, item, time, part
rows = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), days, st.integers(-1, 2)), max_size=20)
joined = st.none() | st.lists(days, min_size=4, max_size=4)


def edges_of(edges: Rows, users: list[int] | None) -> tuple[WholeEdges, Rows]:
    """Return the edges as they lie in a graph, and their rows in this order."""
    table = torch.tensor(edges, dtype=torch.int64).view(-1, 4)
    columns = {BUYS: {"time": table[:, 2], "split": table[:, 3].to(torch.int8)}}
    graph = csc_graph_from_edges({"user": 4, "item": 5}, {BUYS: (table[:, 0], table[:, 1])}, columns=columns)
    csc, of_users = graph.csc(BUYS), None if users is None else torch.tensor(users)
    own = graph.columns[BUYS]
    found = WholeEdges(graph, {BUYS: own, "user": {} if of_users is None else {"time": of_users}})
    lies = torch.stack([csc.indices.long(), csc.destinations(), own["time"], own["split"].long()], 1)
    return found, [tuple(row) for row in lies.tolist()]


def time_of(row: tuple[int, int, int, int], users: list[int] | None) -> int:
    return row[2] if users is None else max(row[2], users[row[0]])


def chosen(split: EdgeSplit) -> list[list[int]]:
    return [part.links[BUYS][0].tolist() for part in (split.train, split.val, split.test)]


@given(rows, joined, days, st.integers(0, 5))
def test_links_of_each_part_lie_between_the_cut_offs(
    given_rows: Rows, users: list[int] | None, val: int, gap: int
) -> None:
    edges, lies = edges_of(given_rows, users)
    split = split_by_time(edges, [BUYS], TimeCutOffs(val, val + gap))
    times = [time_of(row, users) for row in lies]
    part = [(time >= val) + (time >= val + gap) for time in times]
    assert chosen(split) == [[at for at, of in enumerate(part) if of == number] for number in range(3)]
    assert split.train.kept is split.val.kept
    for of, limit in ((split.train, val), (split.test, val + gap)):
        assert of.limit == limit
        assert of.kept[BUYS][0].tolist() == [at for at, time in enumerate(times) if time < limit]


@given(rows, joined, days)
def test_nodes_exist_from_their_time_or_their_first_edge_on(
    given_rows: Rows, users: list[int] | None, limit: int
) -> None:
    edges, lies = edges_of(given_rows, users)
    early = [row for row in lies if time_of(row, users) < limit]
    found = nodes_before(edges, limit, nodes_with_edges_before(edges, limit))
    buyers = {row[0] for row in early}
    assert found["item"].tolist() == [item in {row[1] for row in early} for item in range(5)]
    assert found["user"].tolist() == [
        users[user] < limit if users is not None else user in buyers for user in range(4)
    ]


@given(rows)
def test_links_of_each_part_have_its_number(given_rows: Rows) -> None:
    edges, lies = edges_of(given_rows, None)
    split = split_by_column(edges, [BUYS])
    assert chosen(split) == [[at for at, row in enumerate(lies) if row[3] == part] for part in range(3)]
    assert split.train.kept[BUYS][0].tolist() == [at for at, row in enumerate(lies) if row[3] == 0]
    assert split.test.kept[BUYS][0].tolist() == [at for at, row in enumerate(lies) if row[3] in (0, 1)]
    assert split.train.limit is split.test.limit is None


BACK = ("item", "bought-by", "user")
has_users = st.sampled_from(["edges", "users", "both"])  # where the times of links are
items = st.none() | st.lists(days, min_size=5, max_size=5)


@given(rows, st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=6), has_users, items, days)
@example([(0, 0, 9, 2)], [], "edges", None, 3)
def test_a_reverse_type_without_the_column_has_no_edge_of_a_link_to_predict(
    given_rows: Rows, more: list[tuple[int, int]], of: str, items: list[int] | None, val: int
) -> None:
    table = torch.tensor(given_rows, dtype=torch.int64).view(-1, 4)
    backward = torch.cat([table[:, :2].flip(1), torch.tensor(more, dtype=torch.int64).view(-1, 2)])
    columns = {BUYS: {"time": table[:, 2], "split": table[:, 3].to(torch.int8)}}
    ends = {BUYS: (table[:, 0], table[:, 1]), BACK: (backward[:, 0], backward[:, 1])}
    graph = csc_graph_from_edges({"user": 4, "item": 5}, ends, columns=columns)
    graph = replace(graph, schema=replace(graph.schema, reverse_of={BUYS: BACK, BACK: BUYS}))
    users = [3, 1, 5, 2] if of != "edges" else None
    own = {"split": graph.columns[BUYS]["split"]}
    if of != "users":
        own["time"] = graph.columns[BUYS]["time"]
    times = {
        "user": {} if users is None else {"time": torch.tensor(users)},
        "item": {} if items is None else {"time": torch.tensor(items)},
    }
    edges, csc = WholeEdges(graph, {BUYS: own, **times}), graph.csc(BACK)
    reverse = list(zip(csc.destinations().tolist(), csc.indices.tolist(), strict=True))  # user, item

    def kept(split: EdgeSplit) -> list[list[int]]:
        return [part.kept[BACK][0].tolist() for part in (split.train, split.val, split.test)]

    def expected(hidden: Callable[[tuple[int, int, int, int]], bool], limit: int | None) -> list[int]:
        pairs = {row[:2] for row in given_rows if hidden(row)}
        late = [] if items is None or limit is None else [item for item in range(5) if items[item] >= limit]
        return [at for at, pair in enumerate(reverse) if pair not in pairs and pair[1] not in late]

    early = expected(lambda row: row[3] != 0, None)
    assert kept(split_by_column(edges, [BUYS])) == [
        early,
        early,
        expected(lambda row: row[3] not in (0, 1), None),
    ]

    def time(row: tuple[int, int, int, int]) -> int:
        of_user = -100 if users is None else users[row[0]]
        return of_user if of == "users" else max(row[2], of_user)

    early = expected(lambda row: time(row) >= val, val)
    assert kept(split_by_time(edges, [BUYS], TimeCutOffs(val, val + 3))) == [
        early,
        early,
        expected(lambda row: time(row) >= val + 3, val + 3),
    ]


@given(rows, rows, days, st.integers(0, 5))
def test_several_types_are_split_as_each_is_alone(bought: Rows, liked: Rows, val: int, gap: int) -> None:
    tables = {
        t: torch.tensor(of, dtype=torch.int64).view(-1, 4) for t, of in ((BUYS, bought), (LIKES, liked))
    }
    columns = {t: {"time": of[:, 2], "split": of[:, 3].to(torch.int8)} for t, of in tables.items()}
    ends = {t: (of[:, 0], of[:, 1]) for t, of in tables.items()}
    graph = csc_graph_from_edges({"user": 4, "item": 5}, ends, columns=columns)
    edges, cut_offs = WholeEdges(graph, graph.columns), TimeCutOffs(val, val + gap)
    for both, alone in (
        (split_by_time(edges, [BUYS, LIKES], cut_offs), lambda t: split_by_time(edges, [t], cut_offs)),
        (split_by_column(edges, [BUYS, LIKES]), lambda t: split_by_column(edges, [t])),
    ):
        for edge_type in (BUYS, LIKES):
            for name in ("train", "val", "test"):
                part, expected = getattr(both, name), getattr(alone(edge_type), name)
                assert part.links[edge_type][0].equal(expected.links[edge_type][0])
                assert {t: of[0].tolist() for t, of in part.kept.items()} == {
                    t: of[0].tolist() for t, of in expected.kept.items()
                }


def test_edges_without_times_and_parts_are_refused() -> None:
    edges, _ = edges_of([(0, 0, 1, 0)], None)
    bare = WholeEdges(edges.graph, {})
    assert edge_times(bare, BUYS) is None
    assert positions_before(bare, 3) == nodes_with_edges_before(bare, 3) == {}
    with pytest.raises(ValueError, match="have no column 'time' to split by"):
        split_by_time(bare, [BUYS], TimeCutOffs(1, 2))
    with pytest.raises(ValueError, match="have no column 'split' to split by"):
        split_by_column(bare, [BUYS])


def test_a_part_without_links_is_named() -> None:
    check_parts(BUYS, {"train": 1, "val": 2})
    with pytest.raises(ValueError, match="none is of val; change the split"):
        check_parts(BUYS, {"train": 1, "val": 0})
