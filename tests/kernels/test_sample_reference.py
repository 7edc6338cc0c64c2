"""Draws of the smallest keys: native code, torch and the specification agree, and rows keep their order."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.draw import DrawKey, Neighbors
from khop.kernels.csc import Csc
from khop.kernels.draw_request import DrawRequest, Kernel, RowLimits
from khop.kernels.edge_arrays import parallel_rows, weight_sums
from khop.kernels.edge_times import HopRows
from khop.kernels.philox import SourceNumbers
from khop.kernels.sample_hop import sample_hop
from khop.kernels.sample_reference import sample_smallest_reference
from khop.sampling.rules.uniform import Uniform
from khop.sampling.rules.weighted import Weighted
from khop.testing import reference
from support.draws import rising, uniform_request, weighted_request

STREAM = 0xFEEDBEEF
RUN = DrawKey.of(7, 2, 1, 11)  # type: ignore[arg-type]


@dataclass(frozen=True)
class RowQuery:
    """One call of the kernel."""

    sources: list[list[int]]  # by row
    nodes: list[int]
    fanout: int
    key: DrawKey = RUN
    period: int = 1
    originals: list[int] | None = None  # by source
    ranges: list[tuple[int, int]] | None = None
    values: list[int] | None = None  # by edge; None: keys by source
    dtype: torch.dtype = torch.int32

    def csc(self) -> Csc:
        flat = [source for row in self.sources for source in row]
        return Csc(torch.tensor([0, *map(len, self.sources)]).cumsum(0), torch.tensor(flat, dtype=self.dtype))

    def request(self) -> DrawRequest:
        csc, flags = self.csc(), parallel_rows(self.csc())
        ranges = None if self.ranges is None else torch.tensor(self.ranges, dtype=torch.int64).reshape(-1)
        ids = None if self.originals is None else torch.tensor(self.originals)[csc.indices.long()]
        return DrawRequest(
            csc,
            HopRows(torch.tensor(self.nodes, dtype=torch.int64), self.key, STREAM, ranges=ranges),
            self.fanout,
            sample_smallest_reference,
            Kernel.SMALLEST,
            source_ids=ids,
            order=SourceNumbers.of(self.key, STREAM, self.period)
            if self.values is None
            else torch.tensor(self.values, dtype=torch.int64),
            has_parallel=flags if bool(flags.any()) else None,
        )

    def specified(self) -> list[list[int]]:
        starts, picked = self.csc().indptr.tolist(), []
        generation = self.key.step // self.period
        keys = [self.key.at_step(number).value for number in (generation, generation + 1)]
        for i, node in enumerate(self.nodes):
            begin, end = (starts[node], starts[node + 1]) if self.ranges is None else self.ranges[i]
            ids = self.sources[node][begin - starts[node] : end - starts[node]]
            ids = ids if self.originals is None else [self.originals[source] for source in ids]
            if self.values is None:
                later_from = self.period - self.key.step % self.period
                of_row = reference.labor_keys(keys[0], STREAM, ids, self.period, keys[1], later_from)
            else:
                of_row, ids = [value + (1 << 63) for value in self.values[begin:end]], [0] * len(ids)
            picks = reference.smallest_picks(of_row, ids, self.fanout)
            picked.append([begin + pick for pick in picks])
        return picked


@st.composite
def questions(draw: st.DrawFn) -> RowQuery:
    most = draw(st.sampled_from([3, 40]))  # few sources: many parallel edges
    sources = draw(st.lists(st.lists(st.integers(0, most), max_size=30), min_size=1, max_size=6))
    starts = [0]
    for row in sources:
        starts.append(starts[-1] + len(row))
    nodes = draw(st.lists(st.integers(0, len(sources) - 1), max_size=12))
    ranges, values, originals = None, None, None
    if draw(st.booleans()):
        ends = [st.integers(starts[node], starts[node + 1]) for node in nodes]
        ranges = [(min(pair), max(pair)) for pair in (draw(st.tuples(end, end)) for end in ends)]
    if draw(st.booleans()):
        ids = st.integers(0, 2**62)
        originals = draw(st.lists(ids, min_size=most + 1, max_size=most + 1, unique=True))
    if draw(st.booleans()):
        numbers = st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1)
        values = draw(st.lists(numbers, min_size=starts[-1], max_size=starts[-1]))
    key = DrawKey.of(draw(st.integers(0, 99)), 2, 3, draw(st.integers(0, 50)))  # type: ignore[arg-type]
    fanout = draw(st.integers(-1, 8) | st.sampled_from([20, 70]))
    dtype = draw(st.sampled_from([torch.int32, torch.int64]))
    return RowQuery(sources, nodes, fanout, key, draw(st.integers(1, 9)), originals, ranges, values, dtype)


def drawn(question: RowQuery, threads: int = 1) -> Neighbors:
    return sample_hop([question.request()], edge_ids=True, threads=threads)[0]


def assert_same(found: Neighbors, expected: Neighbors) -> None:
    assert found.edges is not None
    assert expected.edges is not None
    assert found.offsets.tolist() == expected.offsets.tolist()
    assert found.edges.tolist() == expected.edges.tolist()
    assert found.nodes.tolist() == expected.nodes.tolist()
    assert found.nodes.dtype == expected.nodes.dtype


@given(question=questions())
def test_every_pick_is_what_the_specification_says(question: RowQuery) -> None:
    rows = question.specified()
    edges = torch.tensor([edge for row in rows for edge in row], dtype=torch.int64)
    offsets = torch.tensor([0, *map(len, rows)]).cumsum(0)
    expected = Neighbors(offsets, question.csc().indices[edges], edges)
    assert_same(drawn(question), expected)
    assert_same(sample_smallest_reference(question.request()), expected)
    without = sample_hop([question.request()], edge_ids=False)[0]
    assert without.edges is None
    assert without.nodes.tolist() == expected.nodes.tolist()


def long_rows(parallel: int) -> list[list[int]]:
    """Rows of up to 900 edges; `parallel` of every ten have parallel edges."""
    return [
        [(at * 7919 + row) % (at // 2 + 1 if row % 10 < parallel else 1 << 20) for at in range(row * 3)]
        for row in range(300)
    ]


@pytest.mark.core(1)
@pytest.mark.parametrize("fanout", [-1, 0, 1, 10, 15, 64, 200])
@pytest.mark.parametrize("values", [False, True])
def test_threads_do_not_change_a_bit(fanout: int, values: bool) -> None:
    nodes = (torch.arange(900) * 17 % 300).tolist()
    question = RowQuery(long_rows(4), nodes, fanout, period=4)
    if values:
        generator = torch.Generator().manual_seed(1)
        count = question.csc().num_edges
        question = replace(question, values=torch.randint(-99, 99, (count,), generator=generator).tolist())
    expected = sample_smallest_reference(question.request())
    for threads in (1, 2, 3, 8):
        assert_same(drawn(question, threads), expected)


def test_a_row_that_is_not_known_to_have_parallel_edges_has_none() -> None:
    """The flags say where copies are numbered; without flags, copies have the key of their source."""
    question = RowQuery([[5, 5, 5, 9]], [0], 2)
    flagged = question.request()
    assert flagged.has_parallel is not None
    assert flagged.has_parallel.tolist() == [1]
    assert_same(drawn(question), sample_smallest_reference(flagged))


def test_keys_with_few_values_are_taken_in_row_order() -> None:
    question = RowQuery([list(range(30))], [0], 4, values=[1, 0, 0, 1] * 7 + [0, 0])
    assert drawn(question).nodes.tolist() == [1, 2, 5, 6]


def test_arrays_that_do_not_fit_the_edges_are_refused() -> None:
    request = RowQuery([[1, 2, 3]], [0], 1, originals=[4, 3, 2, 1]).request()
    for wrong, name in (
        (replace(request, source_ids=torch.arange(2)), "source_ids"),
        (replace(request, has_parallel=torch.zeros(4, dtype=torch.uint8)), "has_parallel"),
        (replace(request, order=torch.arange(9)), "keys"),
    ):
        with pytest.raises(ValueError, match=name):
            sample_hop([wrong], edge_ids=True)
    outside = replace(request, rows=replace(request.rows, nodes=torch.tensor([4])))
    with pytest.raises(ValueError, match=r"frontier node 4: not in \[0, 1\)"):
        sample_hop([outside], edge_ids=True)
    with pytest.raises(ValueError, match="no replacement"):
        sample_hop([replace(request, replacement=True)], edge_ids=True)


ROWS = 700
NODES = torch.arange(ROWS).flip(0)


def csc_of(degrees: list[int], dtype: torch.dtype) -> Csc:
    indptr = torch.tensor([0, *(degrees[row % len(degrees)] for row in range(ROWS))]).cumsum(0)
    return Csc(indptr, (torch.arange(int(indptr[-1])) * 13 % 1009).to(dtype))


def draws() -> list[DrawRequest]:
    """Narrow and wide indices, uniform and by weight, few, all and no neighbors, of one frontier."""
    narrow, wide = csc_of([0, 3, 9], torch.int32), csc_of([5, 1, 40, 2], torch.int64)
    sums = rising(narrow, weight_sums(narrow, torch.arange(narrow.num_edges) % 5.0))

    def rows(stream: int) -> HopRows:
        return HopRows(NODES, DrawKey(3), stream)

    return [
        uniform_request(narrow, rows(1), 3, Uniform()),
        uniform_request(wide, rows(2), 4, Uniform(replacement=True)),
        weighted_request(narrow, sums, rows(3), 2, Weighted("w")),
        uniform_request(wide, rows(4), 0, Uniform()),
        uniform_request(wide, rows(5), -1, Uniform()),
        uniform_request(narrow, rows(6), 70, Uniform()),
    ]


def parts(neighbors: Neighbors) -> tuple[torch.dtype, list[int], list[int], list[int] | None]:
    edges = None if neighbors.edges is None else neighbors.edges.tolist()
    return neighbors.nodes.dtype, neighbors.offsets.tolist(), neighbors.nodes.tolist(), edges


@pytest.mark.parametrize("edge_ids", [False, True])
@pytest.mark.parametrize("threads", [1, 3])
def test_edge_types_drawn_together_are_as_each_drawn_alone(edge_ids: bool, threads: int) -> None:
    together = sample_hop(draws(), edge_ids=edge_ids, threads=threads)
    alone = [sample_hop([draw], edge_ids=edge_ids)[0] for draw in draws()]
    assert [parts(found) for found in together] == [parts(found) for found in alone]


def test_a_fanout_of_zero_gives_empty_rows_and_reads_nothing_of_the_graph() -> None:
    damaged = Csc(torch.tensor([0, 10**9, 3]), torch.zeros(3, dtype=torch.int32))
    (found,) = sample_hop(
        [uniform_request(damaged, HopRows(torch.tensor([0, 1, 1]), DrawKey(0), 1), 0, Uniform())],
        edge_ids=True,
    )
    assert parts(found) == (torch.int32, [0, 0, 0, 0], [], [])


def test_nothing_to_draw_is_nothing() -> None:
    assert sample_hop([], edge_ids=False) == []


def test_operands_that_do_not_fit_are_refused() -> None:
    csc = Csc(torch.tensor([0, 2, 2, 5]), torch.tensor([0, 1, 2, 0, 1]), 3)
    rows = HopRows(torch.tensor([2, 0, 2]), DrawKey(1), stream=7)
    for wrong in (-2, 1 << 31):
        with pytest.raises(ValueError, match=f"fanout {wrong}: must be from 0"):
            sample_hop([uniform_request(csc, rows, wrong, Uniform())], edge_ids=False)
    for name, values in (
        ("nodes", torch.tensor([1.0])),
        ("original_ids", torch.tensor([1])),
        ("tree", torch.tensor([1, 2])),
        ("ranges", torch.tensor([0, 1, 0])),
    ):
        wrong_rows = replace(rows, **{name: values})  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=f"{name} is torch"):
            sample_hop([uniform_request(csc, wrong_rows, 2, Uniform())], edge_ids=False)


CSC = Csc(torch.tensor([0, 4, 6]), torch.tensor([9, 8, 7, 6, 5, 4], dtype=torch.int32))
REQUEST = uniform_request(CSC, HopRows(torch.tensor([1, 0]), DrawKey(1), 2), 2, Uniform())


@pytest.mark.parametrize(
    ("window", "is_latest", "ranges"),
    [(None, False, [4, 5, 0, 3]), ((10, 0), False, [5, 5, 1, 3]), (None, True, [4, 5, 1, 3])],
)
def test_time_limits_become_ranges_of_edges(
    window: tuple[int, int] | None, is_latest: bool, ranges: list[int]
) -> None:
    times = rising(CSC, torch.tensor([10, 20, 30, 40, 10, 50]))
    limits = RowLimits(times, None, torch.tensor([25, 30]), window, is_latest)
    resolved = replace(REQUEST, limits=limits).resolved()
    assert resolved.rows.ranges is not None
    assert resolved.rows.ranges.tolist() == ranges
    assert resolved.fanout == (-1 if is_latest else 2)
    (found,) = sample_hop([replace(REQUEST, limits=limits)], edge_ids=True)
    (expected,) = sample_hop([resolved], edge_ids=True)
    assert torch.equal(found.nodes, expected.nodes)


def test_neighbors_are_the_sources_of_edges_row_after_row() -> None:
    found = REQUEST.neighbors(torch.tensor([1, 2]), torch.tensor([4, 0, 3]), torch.tensor([0.5, 1.0, 2.0]))
    assert found.offsets.tolist() == [0, 1, 3]
    assert found.nodes.tolist() == [5, 9, 6]
    assert found.weights is not None
    assert found.weights.tolist() == [0.5, 1.0, 2.0]
    REQUEST.check_drawn(found)
