"""Co-occurrences are the sparse product of a graph with its transpose, in a fraction of its memory.

Dealing of edges to ranges of destinations, and rows by 32-bit positions.

Keys sort values of any dtype from the largest, exactly.

Drawn edges without some: the kernel, its torch reference and a comprehension give the same.

Rows put between the rows of a table.

Rows with parallel edges are found, in short and in long rows, by any number of threads.

Edges of a row by relation are counted as NumPy counts them, in pieces of any size.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from itertools import accumulate

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from torch import Tensor

from khop.draw import Neighbors
from khop.kernels import edge_arrays as module
from khop.kernels.csc import Csc, build_csc
from khop.kernels.edge_arrays import (
    cooccurrences,
    cooccurrences_reference,
    counts_in_ranges,
    deal_edges,
    descending_keys,
    exclude_edges,
    exclude_edges_reference,
    first_unsorted,
    first_unsorted_reference,
    insert_rows,
    known_edges,
    parallel_rows,
    parallel_rows_reference,
    relation_counts,
    sort_rows,
    sort_rows_reference,
    take_rows,
    weight_sums,
    weight_sums_reference,
)
from khop.kernels.node_index import NodeIndex
from khop.testing.reference import whole_weights


def both_ways(users: Tensor, items: Tensor, num_users: int, num_items: int) -> tuple[Csc, Csc]:
    """The users of each item, the items of each user."""
    return (
        build_csc(users, items, num_users, num_items)[0],
        build_csc(items, users, num_items, num_users)[0],
    )


def by_scipy(users: Tensor, items: Tensor, shape: tuple[int, int], min_count: int) -> csr_array:
    ones = np.ones(users.numel(), dtype=np.int64)
    bought = csr_array((ones, (users.numpy(), items.numpy())), shape)
    together = csr_array(bought.T @ bought)
    together.setdiag(0)
    together.data[together.data < min_count] = 0
    together.eliminate_zeros()
    together.sort_indices()
    return together


@st.composite
def purchases(draw: st.DrawFn) -> tuple[Tensor, Tensor, tuple[int, int]]:
    shape = draw(st.sampled_from([(1, 1), (3, 40), (40, 3), (60, 50), (9, 700)]))
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    edges = draw(st.sampled_from([0, 1, 30, 400, 3000]))
    users, items = (torch.randint(count, (edges,), generator=random) for count in shape)
    return users, items, shape


@given(purchases(), st.integers(1, 4), st.sampled_from([1, 2, 5]))
def test_equals_the_sparse_product(
    bought: tuple[Tensor, Tensor, tuple[int, int]], min_count: int, threads: int
) -> None:
    users, items, shape = bought
    there, back = both_ways(users, items, *shape)
    expected = by_scipy(users, items, shape, min_count)
    for found, counts in (
        cooccurrences(there, back, min_count, threads=threads),
        cooccurrences_reference(there, back, min_count),
    ):
        assert found.indptr.tolist() == expected.indptr.tolist()
        assert found.indices.tolist() == expected.indices.tolist()
        assert counts.tolist() == expected.data.tolist()
        assert found.indices.dtype == counts.dtype == torch.int32


def test_many_parts_are_the_same_on_any_number_of_threads() -> None:
    random = torch.Generator().manual_seed(1)
    users = torch.randint(20_000, (200_000,), generator=random)
    items = (torch.rand(200_000, generator=random).square() * 5_000).long()
    there, back = both_ways(users, items, 20_000, 5_000)
    expected = cooccurrences(there, back, 2)
    for threads in (2, 3):
        found = cooccurrences(there, back, 2, threads=threads)
        assert torch.equal(found[0].indptr, expected[0].indptr)
        assert torch.equal(found[0].indices, expected[0].indices)
        assert torch.equal(found[1], expected[1])


def test_ids_of_different_width_are_compared() -> None:
    there, back = both_ways(torch.tensor([0, 0, 1]), torch.tensor([0, 2, 2]), 2, 3)
    wide = Csc(there.indptr, there.indices.long())
    found, counts = cooccurrences(wide, back, 1)
    assert (found.indptr.tolist(), found.indices.tolist(), counts.tolist()) == ([0, 1, 1, 2], [2, 0], [1, 1])
    assert found.indices.dtype == torch.int32


def test_what_cannot_be_followed_is_named() -> None:
    there, back = both_ways(torch.tensor([0, 1]), torch.tensor([0, 2]), 2, 3)
    with pytest.raises(ValueError, match="min_count 0: must be at least 1"):
        cooccurrences(there, back, 0)
    with pytest.raises(ValueError, match=r"source id 1 at position 1: must be in \[0, 1\)"):
        cooccurrences(there, Csc(torch.tensor([0, 1]), back.indices[:1]), 1)


# 400 users with 1,000 of 20,000 items each: 250 million pairs occur together, 4 GB as a sparse matrix.
BOUNDED = """
import resource, torch
from khop.kernels.edge_arrays import cooccurrences
from khop.kernels.csc import Csc
items = torch.arange(400_000).view(400, 1000) * 20 % 20_000 + torch.randint(20, (400, 1000))
back = Csc(torch.arange(0, 400_001, 1000), items.flatten().int())
order = torch.argsort(items.flatten(), stable=True)
degrees = torch.bincount(items.flatten(), minlength=20_000)
there = Csc(torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)]), (order // 1000).int())
none = Csc(torch.zeros(2, dtype=torch.int64), there.indices[:0])
cooccurrences(none, none, 1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found, counts = cooccurrences(there, back, 12, threads=2)
print(found.num_edges, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.long
def test_memory_is_that_of_the_result_and_not_of_the_product() -> None:
    finished = subprocess.run([sys.executable, "-c", BOUNDED], capture_output=True, text=True, timeout=120)
    assert finished.returncode == 0, finished.stderr
    pairs, kilobytes = map(int, finished.stdout.split())
    assert pairs < 100_000
    assert kilobytes < 16_000


@pytest.mark.long
def test_a_count_stops_where_it_does_not_fit() -> None:
    """2^16 parallel edges on one side and more than 2^15 on the other make more ways than 2^31."""
    parallel = torch.zeros(2**16, dtype=torch.int32)
    there = Csc(torch.tensor([0, 2**16, 2**16]), parallel)
    back = Csc(torch.tensor([0, 2**15 + 1]), torch.ones(2**15 + 1, dtype=torch.int32))
    found, counts = cooccurrences(there, back, 2**40)
    assert (found.indices.tolist(), counts.tolist()) == ([1], [2**31 - 1])


@given(
    st.lists(st.integers(0, 99), max_size=200),
    st.integers(0, 6),
    st.sampled_from([0, 7, 2**33]),
    st.sampled_from([np.int32, np.int64]),
)
def test_equals_a_stable_sort_by_range(
    destinations: list[int], shift: int, first: int, dtype: type[np.signedinteger]
) -> None:
    first = first if dtype is np.int64 else min(first, 7)
    given_ids = np.array(destinations, dtype) + dtype(first)
    begin, order = deal_edges(given_ids, first, shift, (99 >> shift) + 1)
    ranges = (given_ids.astype(np.int64) - first) >> shift
    assert np.diff(begin, prepend=0).tolist() == [0, *np.bincount(ranges, minlength=(99 >> shift) + 1)]
    assert order.tolist() == np.argsort(ranges, kind="stable").tolist()


@pytest.mark.parametrize("bad", [-1, 4, 12])
def test_the_first_destination_outside_is_named(bad: int) -> None:
    ids = np.array([5, 11, bad, bad])
    with pytest.raises(ValueError, match=rf"destination {bad} at position 2: must be in \[5, 12\)"):
        deal_edges(ids, 5, 0, 7)


@given(st.data(), st.sampled_from([(), (1,), (3,), (2, 5)]), st.sampled_from(["u1", "<i2", "<f4", "<i8"]))
def test_rows_are_taken_in_order(data: st.DataObject, shape: tuple[int, ...], dtype: str) -> None:
    table = np.arange(10 * int(np.prod(shape))).reshape(10, *shape).astype(dtype)
    order = np.array(data.draw(st.lists(st.integers(0, 9), max_size=30)), np.uint32)
    taken = take_rows(table, order)
    assert taken.dtype == table.dtype
    assert np.array_equal(taken, table[order])


def test_rows_without_bytes_and_rows_that_are_not_there() -> None:
    assert take_rows(np.empty((3, 0)), np.array([2, 2], np.uint32)).shape == (2, 0)
    with pytest.raises(ValueError, match="row at position 1: there are 3"):
        take_rows(np.arange(3), np.array([0, 3], np.uint32))


FLOATS = st.floats(allow_nan=False) | st.sampled_from([0.0, -0.0, 1.0, float("inf"), 5e-324])
INTS = st.integers(-(2**63), 2**63 - 1)


@given(values=st.lists(FLOATS, max_size=40) | st.lists(INTS, max_size=40))
def test_keys_order_as_values_do_the_other_way(values: list[float]) -> None:
    dtype = torch.int64 if values and isinstance(values[0], int) else torch.float64
    keys = descending_keys(torch.tensor(values, dtype=dtype)).tolist()
    for one, first in zip(values, keys, strict=True):
        for other, second in zip(values, keys, strict=True):
            assert (first < second) == (one > other)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.uint8, torch.int8, torch.bool], ids=str
)
def test_narrow_values_too(dtype: torch.dtype) -> None:
    values = torch.tensor([0, 1, 0], dtype=dtype)
    first, second, third = descending_keys(values).tolist()
    assert first == third > second


def test_a_value_that_is_no_number_is_named() -> None:
    with pytest.raises(ValueError, match="nan at position 1: must be a number"):
        descending_keys(torch.tensor([1.0, float("nan")]))


NODE = st.integers(0, 6)
ROWS = st.lists(st.tuples(NODE, st.lists(NODE, max_size=8)), max_size=12)
PAIRS = st.lists(st.tuples(NODE, NODE), max_size=20)


def drawn(
    rows: list[tuple[int, list[int]]], dtype: torch.dtype, edge_ids: bool, weights: bool
) -> tuple[Neighbors, Tensor]:
    sources = [source for _, row in rows for source in row]
    offsets = torch.tensor([0, *(len(row) for _, row in rows)]).cumsum(0)
    edges = torch.arange(100, 100 + len(sources)) if edge_ids else None
    nodes = torch.tensor([node for node, _ in rows], dtype=torch.int64)
    of_edges = torch.arange(len(sources)) / 4 if weights else None
    return Neighbors(offsets, torch.tensor(sources, dtype=dtype), edges, of_edges), nodes


def columns(pairs: list[tuple[int, int]]) -> Tensor:
    return torch.tensor(pairs, dtype=torch.int64).view(-1, 2).T


@given(
    rows=ROWS,
    pairs=PAIRS,
    dtype=st.sampled_from([torch.int32, torch.int64]),
    edge_ids=st.booleans(),
    weights=st.booleans(),
)
def test_what_is_excluded_goes_and_the_rest_keeps_its_order(
    rows: list[tuple[int, list[int]]],
    pairs: list[tuple[int, int]],
    dtype: torch.dtype,
    edge_ids: bool,
    weights: bool,
) -> None:
    found, nodes = drawn(rows, dtype, edge_ids, weights)
    kept = [
        (row, source)
        for row, (node, row_of) in enumerate(rows)
        for source in row_of
        if (source, node) not in pairs
    ]
    ids = [
        100 + i
        for i, (node, source) in enumerate((n, s) for n, r in rows for s in r)
        if (source, node) not in pairs
    ]
    for kernel in (exclude_edges, exclude_edges_reference):
        left = kernel(found, nodes, columns(pairs))
        assert left.nodes.dtype == dtype
        assert left.nodes.tolist() == [source for _, source in kept]
        assert left.offsets.diff().tolist() == [sum(r == row for r, _ in kept) for row in range(len(rows))]
        assert (left.edges is None) == (not edge_ids)
        assert left.edges is None or left.edges.tolist() == ids
        assert (left.weights is None) == (not weights)
        assert left.weights is None or left.weights.tolist() == [(edge - 100) / 4 for edge in ids]


def test_ids_beyond_32_bits_are_distinguished() -> None:
    far = 1 << 40
    found = Neighbors(torch.tensor([0, 2]), torch.tensor([far, far + (1 << 32)]))
    left = exclude_edges(found, torch.tensor([far + 1]), torch.tensor([[far], [far + 1]]))
    assert left.nodes.tolist() == [far + (1 << 32)]


@pytest.mark.parametrize(
    ("rows", "excluded", "message"),
    [
        (torch.tensor([1]), torch.zeros(3, 2, dtype=torch.int64), r"excluded is torch.int64 \(3, 2\)"),
        (
            torch.tensor([1, 2]),
            torch.zeros(2, 0, dtype=torch.int64),
            r"rows are torch.int64 \(2,\): must be int64 \(1\)",
        ),
    ],
)
def test_operands_that_do_not_fit_are_named(rows: Tensor, excluded: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        exclude_edges(Neighbors(torch.tensor([0, 1]), torch.tensor([3])), rows, excluded)


def test_offsets_that_end_elsewhere_are_named() -> None:
    with pytest.raises(ValueError, match="offsets has 2 at position 1"):
        exclude_edges(
            Neighbors(torch.tensor([0, 2]), torch.tensor([3])), torch.tensor([1]), torch.zeros(2, 0).long()
        )


DTYPES = st.sampled_from(["int8", "int16", "int32", "int64", "float64", "bool"])


@given(DTYPES, st.integers(0, 9), st.sampled_from([(), (1,), (3,), (2, 2)]), st.data())
def test_it_inserts_as_numpy_does(dtype: str, rows: int, width: tuple[int, ...], data: st.DataObject) -> None:
    at = np.array(sorted(data.draw(st.lists(st.integers(0, rows), max_size=12))), np.int64)
    table = np.arange(rows * int(np.prod(width))).reshape(rows, *width).astype(dtype)
    added = (100 + np.arange(len(at) * int(np.prod(width)))).reshape(len(at), *width).astype(dtype)
    found = insert_rows(table, at, added)
    assert found.dtype == table.dtype
    np.testing.assert_array_equal(found, np.insert(table, at, added, axis=0))


def test_places_ascend_in_the_table() -> None:
    table, added = np.arange(3), np.arange(2)
    with pytest.raises(ValueError, match=r"place 1 at position 1: places must ascend in \[0, 3\]"):
        insert_rows(table, np.array([2, 1]), added)
    with pytest.raises(ValueError, match="place 4 at position 0"):
        insert_rows(table, np.array([4, 4]), added)
    with pytest.raises(ValueError, match="rows of float64"):
        insert_rows(table, np.array([0]), np.zeros(1))


def test_rows_of_no_bytes_are_counted() -> None:
    assert insert_rows(np.zeros((2, 0)), np.array([1]), np.zeros((1, 0))).shape == (3, 0)


DENSE_NODES = 1 << 22  # graphs beyond this get a hash table
SIZES = [30, DENSE_NODES + 1, 2**32 + 1]


def known_edges_reference(nodes: Tensor, found: Neighbors) -> tuple[Tensor, Tensor, Tensor]:
    """The same as `known_edges` in plain torch, for an index of `nodes`, int64 in local order."""
    assert found.edges is not None
    order = nodes.argsort()
    place = torch.searchsorted(nodes[order], found.nodes.long()).clamp(max=max(nodes.numel() - 1, 0))
    local = order[place] if nodes.numel() else place.new_full(place.shape, -1)
    known = nodes[local] == found.nodes if nodes.numel() else torch.zeros_like(place, dtype=torch.bool)
    counts = torch.cat([known.new_zeros(1).long(), known.cumsum(0)])
    return counts[found.offsets], local[known].int(), found.edges[known]


def found_of(rows: list[list[int]], dtype: torch.dtype) -> Neighbors:
    lengths = torch.tensor([0, *map(len, rows)])
    nodes = torch.tensor([node for row in rows for node in row], dtype=dtype)
    return Neighbors(lengths.cumsum(0), nodes, torch.arange(nodes.numel()) * 3 + 1)


@given(
    batches=st.lists(st.lists(st.integers(0, 29), max_size=30), min_size=1, max_size=3),
    rows=st.lists(st.lists(st.integers(0, 29), max_size=40), max_size=6),
)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("num_nodes", SIZES)
def test_the_kernel_keeps_what_the_reference_keeps(
    num_nodes: int, dtype: torch.dtype, batches: list[list[int]], rows: list[list[int]]
) -> None:
    """Also of an index that has seen other batches before."""
    index = NodeIndex(num_nodes)
    for batch in batches:
        index.clear()
        index.insert(torch.tensor(batch, dtype=torch.int64))
    found = found_of(rows, dtype)
    kept = known_edges(index, found)
    assert [t.dtype for t in kept] == [torch.int64, torch.int32, torch.int64]
    expected = known_edges_reference(index.nodes(), found)
    assert [t.tolist() for t in kept] == [t.tolist() for t in expected]


def test_the_reference_is_right() -> None:
    """Rows stay, also empty ones, and the order within them; duplicates are kept."""
    nodes = torch.tensor([7, 2, 5])
    offsets, local, edges = known_edges_reference(nodes, found_of([[5, 1, 7], [], [9], [2, 2]], torch.int32))
    assert offsets.tolist() == [0, 2, 2, 2, 4]
    assert local.tolist() == [2, 0, 1, 1]
    assert edges.tolist() == [1, 7, 13, 16]


def test_bad_input_is_named() -> None:
    index = NodeIndex(10)
    with pytest.raises(ValueError, match="node id 10 at position 1"):
        known_edges(index, found_of([[1, 10]], torch.int64))
    with pytest.raises(ValueError, match="2 edges without an edge id each"):
        known_edges(index, Neighbors(torch.tensor([0, 2]), torch.tensor([1, 2])))
    with pytest.raises(ValueError, match="offsets has 3 at position 1"):
        known_edges(index, Neighbors(torch.tensor([0, 3]), torch.tensor([1, 2]), torch.tensor([1, 2])))


PARALLEL_ROWS_ROWS = st.lists(st.lists(st.integers(0, 30), max_size=25), min_size=1, max_size=8)


def csc_of(rows: list[list[int]], dtype: torch.dtype = torch.int32) -> Csc:
    flat = torch.tensor([source for row in rows for source in row], dtype=dtype)
    return Csc(torch.tensor([0, *map(len, rows)]).cumsum(0), flat)


@given(rows=PARALLEL_ROWS_ROWS, dtype=st.sampled_from([torch.int32, torch.int64]))
def test_a_row_is_marked_where_a_source_comes_twice(rows: list[list[int]], dtype: torch.dtype) -> None:
    csc = csc_of(rows, dtype)
    expected = [int(len(set(row)) < len(row)) for row in rows]
    assert parallel_rows(csc).tolist() == expected
    assert parallel_rows_reference(csc).tolist() == expected


def test_threads_change_nothing() -> None:
    rows = [[at % (40 - row % 3) for at in range(row % 41)] for row in range(20_000)]
    csc = csc_of(rows)
    expected = parallel_rows_reference(csc)
    assert 0 < int(expected.sum()) < len(rows)
    for threads in (1, 2, 5):
        assert torch.equal(parallel_rows(csc, threads=threads), expected)


def test_a_damaged_row_is_named() -> None:
    with pytest.raises(ValueError, match="row 1 begins at 9"):
        parallel_rows(Csc(torch.tensor([0, 9, 2]), torch.zeros(2, dtype=torch.int32)))


RELATION = st.sampled_from([0, 1, 2, -3, 1 << 40, -(1 << 62)])


@given(
    rows=st.lists(st.lists(RELATION, max_size=9), max_size=8),
    at_once=st.integers(1, 12),
    data=st.data(),
)
def test_counts_are_those_of_numpy(rows: list[list[int]], at_once: int, data: st.DataObject) -> None:
    relations = torch.tensor([each for row in rows for each in row], dtype=torch.int64)
    indptr = torch.tensor([0, *np.cumsum([len(row) for row in rows], dtype=int).tolist()])
    csc = Csc(indptr, torch.zeros(relations.numel(), dtype=torch.int32))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_AT_ONCE", at_once)
        found = relation_counts(csc, relations)
        expected = [int(np.count_nonzero(np.array(row) == each)) for row in rows for each in row]
        assert (found.dtype, found.tolist()) == (torch.int32, expected)
        # Ranges of some rows, repeated and in any order, and some of their edges.
        chosen = data.draw(st.lists(st.sampled_from(range(len(rows))), max_size=6)) if rows else []
        begin, end, edges, offsets, expected = [], [], list[int](), [0], []
        for row in chosen:
            first, last = indptr[row : row + 2].tolist()
            begin.append(data.draw(st.integers(first, last)))
            end.append(data.draw(st.integers(begin[-1], last)))
            there = range(begin[-1], end[-1])
            asked = data.draw(st.lists(st.sampled_from(there), max_size=4)) if there else []
            counts = Counter(relations[begin[-1] : end[-1]].tolist())
            edges, offsets = edges + asked, [*offsets, len(edges) + len(asked)]
            expected += [counts[int(relations[edge])] for edge in asked]
        numbers = [torch.tensor(each, dtype=torch.int64) for each in (begin, end, edges, offsets)]
        assert counts_in_ranges(relations, *numbers).tolist() == expected


def test_more_edges_than_a_number_of_32_bits_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST", 2)
    csc = Csc(torch.tensor([0, 3]), torch.zeros(3, dtype=torch.int32))
    with pytest.raises(ValueError, match="3 edges of one relation in a row: must be at most 2"):
        relation_counts(csc, torch.zeros(3, dtype=torch.uint8))


SORT_ROWS_ROWS = st.lists(st.lists(st.integers(-3, 3), max_size=6), min_size=1, max_size=6)


def rows_of(rows: list[list[int]]) -> tuple[Csc, torch.Tensor]:
    indptr = torch.tensor([0, *map(len, rows)]).cumsum(0)
    times = torch.tensor([time for row in rows for time in row], dtype=torch.int64)
    return Csc(indptr, torch.arange(times.numel(), dtype=torch.int32)), times


@given(rows=SORT_ROWS_ROWS)
def test_rows_are_in_the_order_of_time_and_equal_times_as_they_were(rows: list[list[int]]) -> None:
    csc, times = rows_of(rows)
    done, order = sort_rows(csc, times)
    expected, start = [], 0
    for row in rows:
        expected += [start + at for at in sorted(range(len(row)), key=row.__getitem__)]
        start += len(row)
    assert order.tolist() == expected == done.indices.tolist()
    assert torch.equal(sort_rows_reference(csc, times), order)
    assert first_unsorted(done, times[order]) == -1


@given(rows=SORT_ROWS_ROWS)
def test_the_first_edge_that_is_too_early_is_found(rows: list[list[int]]) -> None:
    csc, times = rows_of(rows)
    falls, start = [], 0
    for row in rows:
        falls += [start + at for at in range(1, len(row)) if row[at] < row[at - 1]]
        start += len(row)
    assert first_unsorted(csc, times) == first_unsorted_reference(csc, times) == min(falls, default=-1)


@pytest.mark.parametrize("threads", [1, 3])
def test_many_rows_on_any_number_of_threads(threads: int) -> None:
    rows = [[(row * 31 + at * at) % 17 for at in range(row % 9)] for row in range(20_000)]
    csc, times = rows_of(rows)
    assert torch.equal(sort_rows(csc, times, threads=threads)[1], sort_rows_reference(csc, times))
    assert first_unsorted(csc, times, threads=threads) == first_unsorted_reference(csc, times)


def test_on_another_device_rows_are_sorted_there() -> None:
    csc = Csc(torch.tensor([0, 2, 3], device="meta"), torch.zeros(3, dtype=torch.int32, device="meta"))
    done, order = sort_rows(csc, torch.zeros(3, dtype=torch.int64, device="meta"))
    assert order.device.type == done.indices.device.type == "meta"
    assert order.shape == (3,)
    assert done.indices.dtype == torch.int32


@pytest.mark.parametrize(
    ("times", "message"),
    [
        (
            torch.zeros(2, dtype=torch.int64),
            r"times is torch.int64 \(2,\) on cpu: must be int64 \(3\) on cpu",
        ),
        (torch.zeros(3), r"times is torch.float32 \(3,\) on cpu: must be int64 \(3\)"),
        (torch.zeros(3, dtype=torch.int64, device="meta"), r"on meta: must be int64 \(3\) on cpu"),
    ],
    ids=["too few", "no whole numbers", "elsewhere"],
)
def test_times_that_are_not_those_of_the_edges_are_named(times: torch.Tensor, message: str) -> None:
    csc, _ = rows_of([[1, 2], [3]])
    for function in (sort_rows, first_unsorted):
        with pytest.raises(ValueError, match=message):
            function(csc, times)


NUMBERS = st.floats(0, allow_nan=False, allow_infinity=False) | st.sampled_from(
    [0.0, 0.25, 1.0, 3.0, 5e-324, 2.0**-1022, 2.0**-500, 1.7976931348623157e308, 1.0 - 2.0**-53]
)


def weight_sums_rows_of(degrees: list[int]) -> Csc:
    indptr = torch.tensor([0, *degrees]).cumsum(0)
    return Csc(indptr, torch.zeros(int(indptr[-1]), dtype=torch.int32))


@given(rows=st.lists(st.lists(NUMBERS, max_size=8), min_size=1, max_size=5), narrow=st.booleans())
def test_weights_become_whole_numbers_as_specified(rows: list[list[float]], narrow: bool) -> None:
    csc = weight_sums_rows_of([len(row) for row in rows])
    weights = torch.tensor([weight for row in rows for weight in row], dtype=torch.float64)
    if narrow:
        weights = weights.clamp(max=3e38).float()
        pieces = weights.double().split([len(row) for row in rows])
        rows = [piece.tolist() for piece in pieces]
    expected = [total for row in rows for total in accumulate(whole_weights(row))]
    assert weight_sums(csc, weights).tolist() == expected
    assert weight_sums_reference(csc, weights)[0].tolist() == expected


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.int32, torch.uint8, torch.bool, torch.float16, torch.bfloat16]
)
def test_weights_of_any_dtype(dtype: torch.dtype) -> None:
    weights = torch.tensor([0, 1, 0, 1, 1]).to(dtype)
    assert weight_sums(weight_sums_rows_of([3, 2]), weights).tolist() == [0, 2**31, 2**31, 2**31, 2**32]


def test_counts_keep_their_proportions_exactly() -> None:
    assert weight_sums(weight_sums_rows_of([3]), torch.tensor([1, 2, 5])).diff().tolist() == [
        2 * 2**29,
        5 * 2**29,
    ]


def test_threads_do_not_change_a_bit() -> None:
    degrees = [row % 7 for row in range(20_000)]
    weights = torch.rand(sum(degrees), generator=torch.Generator().manual_seed(1))
    expected = weight_sums(weight_sums_rows_of(degrees), weights)
    assert torch.equal(weight_sums(weight_sums_rows_of(degrees), weights, threads=3), expected)


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf"), -5e-324])
@pytest.mark.parametrize("threads", [1, 3])
def test_the_first_bad_weight_is_named(bad: float, threads: int) -> None:
    csc = weight_sums_rows_of([2] * 20_000)
    weights = torch.ones(40_000, dtype=torch.float64)
    weights[[12_345, 30_000]] = bad
    with pytest.raises(
        ValueError, match=rf"weight {bad} at position 12345: must be a finite number, 0 or more"
    ):
        weight_sums(csc, weights, threads=threads)
    assert weight_sums_reference(csc, weights)[1] == 12_345


def test_weights_that_do_not_fit_the_edges_are_refused() -> None:
    for weights in (torch.ones(4), torch.ones(3, 1), torch.ones(3, device="meta")):
        with pytest.raises(ValueError, match=r"must be numbers \(3\) on cpu"):
            weight_sums(weight_sums_rows_of([3]), weights)
