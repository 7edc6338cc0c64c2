"""Co-occurrences are the sparse product of a graph with its transpose, in a fraction of its memory."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from torch import Tensor

from khop.kernels.build_csc import build_csc
from khop.kernels.cooccurrences import cooccurrences, cooccurrences_reference
from khop.kernels.csc import Csc


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
from khop.kernels.cooccurrences import cooccurrences
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
