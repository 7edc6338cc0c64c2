from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import chdtrc  # scipy.stats takes a second to import
from torch import Tensor

from khop.draw import DrawKey, Neighbors
from khop.kernels.csc import Csc
from khop.kernels.edge_times import HopRows
from khop.kernels.sample_reference import sample_uniform_reference
from khop.sampling.rules.uniform import Uniform
from khop.testing import reference
from khop.testing.reference import tree_key
from support.draws import sample_uniform, uniform_request
from support.levels import LEVELS, dispatch_level

STREAM = 0xFEEDBEEF
EVEN = (1e-4, 1 - 1e-4)  # where the tail probability of a fair draw lies, in all but 1 of 5,000 trials


def graph_of(degrees: list[int], dtype: torch.dtype = torch.int32) -> Csc:
    """Rows of these degrees; an edge leads where its position says, self loops and repeats included."""
    indptr = torch.tensor([0, *degrees]).cumsum(0)
    edges = torch.arange(int(indptr[-1]))
    return Csc(indptr, (edges * 7 // 3 % max(1, len(degrees))).to(dtype))


@dataclass(frozen=True)
class RowQuery:
    """One call of the kernel."""

    csc: Csc
    nodes: Tensor
    fanout: int
    rule: Uniform
    key: DrawKey
    original_ids: Tensor | None
    tree: Tensor | None

    def answer(self, threads: int = 1) -> Neighbors:
        return sample_uniform(self.csc, self.rows(), self.fanout, self.rule, edge_ids=True, threads=threads)

    def answer_in_torch(self) -> Neighbors:
        return sample_uniform_reference(uniform_request(self.csc, self.rows(), self.fanout, self.rule))

    def rows(self) -> HopRows:
        return HopRows(self.nodes, self.key, STREAM, self.original_ids, self.tree)

    def specified(self) -> list[list[int]]:
        """The picked edges of each row, by the specification."""
        return reference.sample_hop(
            self.csc.indptr.tolist(),
            self.nodes.tolist(),
            self.fanout,
            self.rule.replacement,
            self.key.value,
            STREAM,
            None if self.original_ids is None else self.original_ids.tolist(),
            None if self.tree is None else self.tree.tolist(),
        )


@st.composite
def questions(draw: st.DrawFn) -> RowQuery:
    degrees = draw(st.lists(st.just(0) | st.integers(1, 6) | st.integers(0, 90), min_size=1, max_size=12))
    rows, dtype = len(degrees), draw(st.sampled_from([torch.int32, torch.int64]))
    nodes = draw(st.lists(st.integers(0, rows - 1), max_size=25))
    original = draw(st.none() | st.lists(st.integers(0, 2**62), min_size=rows, max_size=rows))
    tree = draw(st.none() | st.lists(st.integers(0, 2**40), min_size=len(nodes), max_size=len(nodes)))
    return RowQuery(
        graph_of(degrees, dtype),
        torch.tensor(nodes, dtype=torch.int64),
        draw(st.integers(-1, 8) | st.integers(60, 95)),
        Uniform(draw(st.booleans())),
        DrawKey(draw(st.integers(0, 2**64 - 1))),
        None if original is None else torch.tensor(original),
        None if tree is None else torch.tensor(tree, dtype=torch.int64),
    )


def assert_same(found: Neighbors, expected: Neighbors) -> None:
    assert found.edges is not None
    assert expected.edges is not None
    assert torch.equal(found.offsets, expected.offsets)
    assert torch.equal(found.nodes, expected.nodes)
    assert found.nodes.dtype == expected.nodes.dtype
    assert torch.equal(found.edges, expected.edges)


def assert_as_specified(question: RowQuery) -> None:
    rows = question.specified()
    edges = torch.tensor([edge for row in rows for edge in row], dtype=torch.int64)
    offsets = torch.tensor([0, *map(len, rows)]).cumsum(0)
    expected = Neighbors(offsets, question.csc.indices[edges], edges)
    for level in LEVELS:
        with dispatch_level(level):
            assert_same(question.answer(), expected)
    assert_same(question.answer_in_torch(), expected)


@given(question=questions())
def test_every_pick_is_what_the_specification_says(question: RowQuery) -> None:
    assert_as_specified(question)


@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("fanout", [3, 70])
def test_rows_on_both_sides_of_the_wide_degree(fanout: int, replacement: bool) -> None:
    csc = graph_of([2**20 - 1, 2**20, 5, 2**20 + 1])
    nodes = torch.tensor([3, 0, 1, 2, 1])
    assert_as_specified(RowQuery(csc, nodes, fanout, Uniform(replacement), DrawKey(99), None, None))


@pytest.mark.parametrize("fanout", [-1, 0, 1, 5, 15, 64, 65])
@pytest.mark.parametrize("replacement", [False, True])
def test_neither_threads_nor_vector_instructions_change_a_bit(fanout: int, replacement: bool) -> None:
    csc = graph_of([(row * row) % 230 for row in range(700)], torch.int64)
    nodes = torch.arange(1600) * 17 % 700
    question = RowQuery(
        csc, nodes, fanout, Uniform(replacement), DrawKey(2**63 + 5), None, torch.arange(1600)
    )
    expected = question.answer_in_torch()
    for level in LEVELS:
        with dispatch_level(level):
            for threads in (1, 2, 3, 8):
                assert_same(question.answer(threads), expected)


def test_edge_ids_come_only_on_request() -> None:
    csc = graph_of([3, 4])
    assert sample_uniform(csc, HopRows(torch.tensor([1]), DrawKey(0), STREAM), 2, Uniform()).edges is None


def test_source_ids_beyond_32_bits_come_whole() -> None:
    far = 2**40
    csc = Csc(torch.tensor([0, 3]), torch.tensor([far, far + 1, far + 2]))
    drawn = sample_uniform(csc, HopRows(torch.tensor([0]), DrawKey(0), STREAM), -1, Uniform())
    assert drawn.nodes.tolist() == [far, far + 1, far + 2]


def test_strided_ids_are_read_as_they_stand() -> None:
    csc = graph_of([9, 9, 9, 9])
    nodes, ids, trees = torch.arange(4).repeat(2)[::2], torch.arange(8)[::2], torch.arange(8)[1::2]
    strided = RowQuery(csc, nodes, 3, Uniform(), DrawKey(1), ids, trees)
    packed = RowQuery(csc, nodes.clone(), 3, Uniform(), DrawKey(1), ids.clone(), trees.clone())
    assert_same(strided.answer(), packed.answer())


@pytest.mark.parametrize("node", [-1, 2, 2**40])
def test_a_frontier_node_that_is_no_row_is_refused(node: int) -> None:
    question = RowQuery(graph_of([3, 4]), torch.tensor([0, node]), 2, Uniform(), DrawKey(0), None, None)
    for answer in (question.answer, question.answer_in_torch):
        with pytest.raises(ValueError, match=rf"frontier node {node}: not in \[0, 2\)"):
            answer()


def test_damaged_row_pointers_are_refused_before_they_are_followed() -> None:
    csc = Csc(torch.tensor([0, 10**9, 3]), torch.zeros(3, dtype=torch.int32))
    with pytest.raises(ValueError, match=r"indptr: row 0 .*the graph is damaged"):
        sample_uniform(csc, HopRows(torch.tensor([0]), DrawKey(0), STREAM), 2, Uniform())


@pytest.mark.parametrize("fanout", [-2, 2**31])
def test_a_fanout_out_of_range_is_refused(fanout: int) -> None:
    with pytest.raises(ValueError, match=f"fanout {fanout}"):
        sample_uniform(graph_of([3]), HopRows(torch.tensor([0]), DrawKey(0), STREAM), fanout, Uniform())


@pytest.mark.parametrize("name", ["nodes", "original_ids", "tree", "ranges"])
def test_ids_of_another_kind_are_refused(name: str) -> None:
    for bad in (torch.tensor([0], dtype=torch.int32), torch.tensor([[0]]), torch.tensor([0], device="meta")):
        rows = replace(HopRows(torch.tensor([0]), DrawKey(0), STREAM), **{name: bad})
        with pytest.raises(ValueError, match=f"{name} is .*: must be int64"):
            sample_uniform(graph_of([3]), rows, 1, Uniform())


@given(question=questions(), data=st.data())
def test_a_range_of_a_row_is_drawn_from_as_a_row(question: RowQuery, data: st.DataObject) -> None:
    """As if the graph had one row for each frontier row, with the range's edges alone."""
    begins, ends = (question.csc.indptr[question.nodes + more].tolist() for more in (0, 1))
    pairs = [
        sorted(data.draw(st.tuples(st.integers(b, e), st.integers(b, e))))
        for b, e in zip(begins, ends, strict=True)
    ]
    rows = replace(question.rows(), ranges=torch.tensor(pairs, dtype=torch.int64).reshape(-1))
    found = sample_uniform(question.csc, rows, question.fanout, question.rule, edge_ids=True)
    request = uniform_request(question.csc, rows, question.fanout, question.rule)
    assert_same(found, sample_uniform_reference(request))
    assert found.edges is not None
    for i, (begin, end) in enumerate(pairs):
        node = int(question.nodes[i])
        original = node if question.original_ids is None else int(question.original_ids[node])
        key = (
            question.key.value
            if question.tree is None
            else tree_key(question.key.value, int(question.tree[i]))
        )
        row = reference.Row(key, original, STREAM, end - begin)
        edges = [begin + pick for pick in row.picks(question.fanout, question.rule.replacement)]
        assert found.edges[found.offsets[i] : found.offsets[i + 1]].tolist() == edges


def test_a_range_that_leaves_the_graph_is_refused() -> None:
    for ranges in ([-1, 2], [2, 1], [0, 4]):
        rows = HopRows(torch.tensor([0]), DrawKey(0), STREAM, ranges=torch.tensor(ranges))
        with pytest.raises(ValueError, match="range in row 0"):
            sample_uniform(graph_of([3]), rows, 1, Uniform())


def test_other_devices_take_the_reference() -> None:
    csc = Csc(*(array.to("meta") for array in (torch.tensor([0, 1]), torch.tensor([0]))))
    with pytest.raises(NotImplementedError):  # values are needed, and that device has none
        sample_uniform(csc, HopRows(torch.tensor([0], device="meta"), DrawKey(0), STREAM), 1, Uniform())


def picks(degree: int, fanout: int, rule: Uniform, rows: int, key: int) -> Tensor:
    """int64 (rows, fanout): what `rows` trees pick of one row."""
    csc = Csc(torch.tensor([0, degree]), torch.arange(degree, dtype=torch.int32))
    frontier = torch.zeros(rows, dtype=torch.int64)
    drawn = sample_uniform(
        csc, HopRows(frontier, DrawKey(key), STREAM, tree=torch.arange(rows)), fanout, rule
    )
    return drawn.nodes.long().reshape(rows, fanout)


@pytest.mark.core(3)
@pytest.mark.parametrize("degree", [2, 3, 5, 10, 17, 100, 1000, 2049, 20_000])
@pytest.mark.parametrize("fanout", [1, 5, 15])
def test_every_neighbor_is_as_likely_without_replacement(degree: int, fanout: int) -> None:
    fanout = min(fanout, degree - 1)
    rows = max(2000, 8 * degree // fanout)
    drawn = picks(degree, fanout, Uniform(), rows, 1)
    assert (drawn.sort(dim=1).values.diff(dim=1) > 0).all(), "a neighbor comes once"
    share = fanout / degree
    times = torch.bincount(drawn.reshape(-1), minlength=degree).double()
    statistic = (
        float((times - rows * share).square().sum() / (rows * share * (1 - share))) * (degree - 1) / degree
    )
    assert EVEN[0] < chdtrc(degree - 1, statistic) < EVEN[1]


@pytest.mark.parametrize("degree", [2, 7, 100, 20_000])
def test_every_neighbor_is_as_likely_with_replacement(degree: int) -> None:
    drawn = picks(degree, 10, Uniform(replacement=True), max(500, degree), 2)
    times = torch.bincount(drawn.reshape(-1), minlength=degree).double()
    expected = drawn.numel() / degree
    assert EVEN[0] < chdtrc(degree - 1, float(((times - expected) ** 2 / expected).sum())) < EVEN[1]


@pytest.mark.parametrize(("degree", "fanout"), [(4, 2), (6, 3), (7, 6), (9, 4)])
def test_every_set_of_neighbors_is_as_likely(degree: int, fanout: int) -> None:
    sets = list(combinations(range(degree), fanout))
    drawn = picks(degree, fanout, Uniform(), 200 * len(sets), 3).sort(dim=1).values
    seen = Counter(map(tuple, drawn.tolist()))
    statistic = sum((seen[one] - 200) ** 2 / 200 for one in sets)
    assert EVEN[0] < chdtrc(len(sets) - 1, statistic) < EVEN[1]


def test_different_nodes_and_streams_draw_independently() -> None:
    """Pairs of picks, of neighboring nodes and of one node at two hops, fill a square evenly."""
    degree, rows = 8, 20_000
    csc = Csc(torch.arange(rows + 1) * degree, torch.arange(degree, dtype=torch.int32).repeat(rows))
    first, second = (
        sample_uniform(csc, HopRows(torch.arange(rows), DrawKey(4), stream), 1, Uniform(True)).nodes.long()
        for stream in (STREAM, STREAM + 1)
    )
    for left, right in ((first[::2], first[1::2]), (first, second)):
        times = torch.bincount(left * degree + right, minlength=degree**2).double()
        expected = left.numel() / degree**2
        assert EVEN[0] < chdtrc(degree**2 - 1, float(((times - expected) ** 2 / expected).sum())) < EVEN[1]
