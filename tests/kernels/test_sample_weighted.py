from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise, permutations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import chdtrc  # scipy.stats takes a second to import

from khop.draw import DrawKey, Neighbors
from khop.kernels.csc import Csc
from khop.kernels.edge_arrays import weight_sums
from khop.kernels.edge_times import HopRows
from khop.kernels.sample_reference import sample_weighted_reference
from khop.sampling.rules.weighted import Weighted
from khop.testing import reference
from support.draws import rising, sample_weighted, weighted_request

STREAM = 0xFEEDBEEF
EVEN = (1e-4, 1 - 1e-4)
WEIGHTS = st.sampled_from([0.0, 0.0, 1.0, 2.0, 0.3, 1e-9, 1e9]) | st.floats(0, 100)


@dataclass(frozen=True)
class RowQuery:
    """One call of the kernel."""

    weights: list[list[float]]  # by row
    rows: HopRows
    fanout: int
    rule: Weighted

    def csc(self) -> Csc:
        indptr = torch.tensor([0, *map(len, self.weights)]).cumsum(0)
        return Csc(indptr, (torch.arange(int(indptr[-1])) * 7 // 3).int())

    def sums(self) -> torch.Tensor:
        flat = [weight for row in self.weights for weight in row]
        return weight_sums(self.csc(), torch.tensor(flat, dtype=torch.float64))

    def answer(self, threads: int = 1) -> Neighbors:
        sums = rising(self.csc(), self.sums())
        return sample_weighted(
            self.csc(), sums, self.rows, self.fanout, self.rule, edge_ids=True, threads=threads
        )

    def answer_in_torch(self) -> Neighbors:
        sums = rising(self.csc(), self.sums())
        return sample_weighted_reference(
            weighted_request(self.csc(), sums, self.rows, self.fanout, self.rule)
        )

    def specified(self) -> list[list[int]]:
        starts, picked = self.csc().indptr.tolist(), []
        for i, node in enumerate(self.rows.nodes.tolist()):
            begin, end = starts[node], starts[node + 1]
            if self.rows.ranges is not None:
                begin, end = self.rows.ranges[2 * i : 2 * i + 2].tolist()
            whole = reference.whole_weights(self.weights[node])[begin - starts[node] : end - starts[node]]
            tree, ids = self.rows.tree, self.rows.original_ids
            key = (
                self.rows.key.value if tree is None else reference.tree_key(self.rows.key.value, int(tree[i]))
            )
            row = reference.Row(key, node if ids is None else int(ids[node]), STREAM, end - begin)
            picks = row.weighted_picks(self.fanout, self.rule.replacement, whole)
            picked.append([begin + pick for pick in picks])
        return picked


@st.composite
def questions(draw: st.DrawFn) -> RowQuery:
    weights = draw(st.lists(st.lists(WEIGHTS, max_size=20), min_size=1, max_size=6))
    count, starts = len(weights), [0]
    for row in weights:
        starts.append(starts[-1] + len(row))
    nodes = draw(st.lists(st.integers(0, count - 1), max_size=12))
    tree = draw(st.none() | st.lists(st.integers(0, 2**40), min_size=len(nodes), max_size=len(nodes)))
    ids = draw(st.none() | st.lists(st.integers(0, 2**62), min_size=count, max_size=count))
    ranges = None
    if draw(st.booleans()):
        ends = [st.integers(starts[node], starts[node + 1]) for node in nodes]
        ranges = [sorted(draw(st.tuples(end, end))) for end in ends]
    rows = HopRows(
        torch.tensor(nodes, dtype=torch.int64),
        DrawKey(draw(st.integers(0, 2**64 - 1))),
        STREAM,
        None if ids is None else torch.tensor(ids),
        None if tree is None else torch.tensor(tree, dtype=torch.int64),
        None if ranges is None else torch.tensor(ranges, dtype=torch.int64).reshape(-1),
    )
    return RowQuery(weights, rows, draw(st.integers(-1, 8) | st.just(70)), Weighted("w", draw(st.booleans())))


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
    assert_same(question.answer(), expected)
    assert_same(question.answer_in_torch(), expected)


def skewed(rows: int, degree: int) -> list[list[float]]:
    """Rows whose weights fall by powers, some of them zero: what is left has to be drawn from exactly."""
    return [
        [0.0 if at % 5 == 4 else 10.0 ** -(at * (row % 3)) for at in range(row % degree)]
        for row in range(rows)
    ]


@pytest.mark.core(1)
@pytest.mark.parametrize("fanout", [-1, 0, 1, 5, 15, 64, 65, 80])
@pytest.mark.parametrize("replacement", [False, True])
def test_threads_do_not_change_a_bit(fanout: int, replacement: bool) -> None:
    nodes = torch.arange(1300) * 17 % 300
    rows = HopRows(nodes, DrawKey(5), STREAM, tree=torch.arange(1300))
    question = RowQuery(skewed(300, 90), rows, fanout, Weighted("w", replacement))
    expected = question.answer_in_torch()
    for threads in (1, 2, 3, 8):
        assert_same(question.answer(threads), expected)


@pytest.mark.parametrize("replacement", [True, pytest.param(False, marks=pytest.mark.long)])
def test_fanouts_of_more_draws_than_are_searched_at_a_time(replacement: bool) -> None:
    """The four rows of the first block draw 560 edges; searches are made for 512 at a time."""
    weights = [[1.0 + at * 7 % 11 for at in range(degree)] for degree in (3, 600, 139, 700, 800)]
    rows = HopRows(torch.tensor([1, 3, 4, 1, 0, 2]), DrawKey(5), STREAM, tree=torch.arange(6))
    question = RowQuery(weights, rows, 140, Weighted("w", replacement))
    assert_same(question.answer(), question.answer_in_torch())


_ALL_BY_A_NUMBER = """
import resource, sys, tempfile
import torch, khop

torch.manual_seed(0)
nodes, edges = 4000, 20_000
ends = [torch.randint(nodes, (edges,)) for _ in range(2)]
table = khop.EdgeTable(*ends, {"w": torch.rand(edges)})
path = khop.write_graph(tempfile.mkdtemp() + "/g", {"item": khop.NodeTable(nodes)}, {"item to item": table})
graph = khop.open_graph(path)

def drawn(fanout, rule):
    batch = khop.Loader(khop.NeighborSampler(graph, [fanout], rule=rule), range(nodes), nodes).batch(0, 0)
    return batch.blocks[0].adjacency

rules = [khop.Uniform(), khop.Weighted("w")]
expected = [drawn(-1, rule) for rule in rules]
now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + (1 << 30),) * 2)
used = resource.getrusage(resource.RUSAGE_SELF)
resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + 60,) * 2)
for rule, whole in zip(rules, expected):
    found = drawn(2**31 - 1, rule)
    assert found.indices.equal(whole.indices) and found.indptr.equal(whole.indptr)
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory in use from /proc")
def test_a_fanout_above_all_degrees_costs_no_more_than_all_edges() -> None:
    """The limits, 1 GiB and a minute of CPU time, are far below the cost of 2^31 slots per row."""
    subprocess.run([sys.executable, "-c", _ALL_BY_A_NUMBER], check=True, timeout=600)


@given(question=questions())
def test_an_edge_of_weight_zero_is_never_drawn_and_one_comes_once(question: RowQuery) -> None:
    flat = [weight for row in question.weights for weight in row]
    drawn = question.answer()
    assert drawn.edges is not None
    assert all(flat[edge] > 0 for edge in drawn.edges.tolist())
    if not question.rule.replacement:
        for begin, end in pairwise(drawn.offsets.tolist()):
            row = drawn.edges[begin:end].tolist()
            assert len(set(row)) == len(row)


def picks(weights: list[float], fanout: int, replacement: bool, trials: int, key: int) -> torch.Tensor:
    """int64 (trials, fanout): what so many trees pick of one row."""
    rows = HopRows(torch.zeros(trials, dtype=torch.int64), DrawKey(key), STREAM, tree=torch.arange(trials))
    drawn = RowQuery([weights], rows, fanout, Weighted("w", replacement)).answer()
    assert drawn.edges is not None
    return drawn.edges.reshape(trials, fanout)


def fits(times: torch.Tensor, expected: torch.Tensor) -> bool:
    statistic = float(((times - expected) ** 2 / expected).sum())
    return EVEN[0] < float(chdtrc(times.numel() - 1, statistic)) < EVEN[1]


@pytest.mark.parametrize(
    "weights",
    [
        [1.0, 2.0],
        [5.0, 0.0, 1.0, 3.0],
        [0.1] * 40,
        [float(1 + at % 9) for at in range(300)],
        [2.0**-at for at in range(9)],
    ],
    ids=len,
)
def test_with_replacement_an_edge_is_as_likely_as_its_weight(weights: list[float]) -> None:
    drawn = picks(weights, 8, True, 20_000, 1)
    share = torch.tensor(weights, dtype=torch.float64)
    times = torch.bincount(drawn.reshape(-1), minlength=len(weights)).double()
    assert fits(times[share > 0], (share / share.sum() * drawn.numel())[share > 0])


@pytest.mark.core(1)
@pytest.mark.parametrize(
    "weights", [[1, 2, 3, 4], [1, 1, 0, 9, 2], [1, 1000, 10, 100, 1], [10**6, 1, 2, 3]], ids=str
)
@pytest.mark.parametrize("fanout", [2, 3])
def test_without_replacement_picks_are_those_of_successive_sampling(weights: list[int], fanout: int) -> None:
    """Every sequence of picks as often as its exact probability says; also where repeats run out."""
    trials = 60_000
    chances: dict[tuple[int, ...], Fraction] = {}
    for sequence in permutations([at for at, weight in enumerate(weights) if weight], fanout):
        left, chance = sum(weights), Fraction(1)
        for at in sequence:
            chance *= Fraction(weights[at], left)
            left -= weights[at]
        chances[sequence] = chance
    assert sum(chances.values()) == 1
    seen = Counter(map(tuple, picks([float(w) for w in weights], fanout, False, trials, 2).tolist()))
    assert seen.keys() <= chances.keys()
    likely = [sequence for sequence, chance in chances.items() if chance * trials >= 10]
    times = [seen[sequence] for sequence in likely]
    expected = [float(chances[sequence]) * trials for sequence in likely]
    rest = [trials - sum(times)], [trials - sum(expected)]
    if rest[1][0] >= 5:
        times, expected = times + rest[0], expected + rest[1]
    assert fits(torch.tensor(times).double(), torch.tensor(expected).double())


def test_sums_that_do_not_fit_the_edges_are_refused() -> None:
    question = RowQuery([[1.0, 2.0]], HopRows(torch.tensor([0]), DrawKey(0), STREAM), 1, Weighted("w"))
    wrong = replace(rising(question.csc(), question.sums()), values=torch.ones(3, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"sums is .*: must be int64 \(2\)"):
        sample_weighted(question.csc(), wrong, question.rows, 1, question.rule)
    outside = replace(question.rows, nodes=torch.tensor([4]))
    for draw in (replace(question, rows=outside).answer, replace(question, rows=outside).answer_in_torch):
        with pytest.raises(ValueError, match=r"frontier node 4: not in \[0, 1\)"):
            draw()
