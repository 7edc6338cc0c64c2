"""Assigning nodes to parts: the native passes do what the plain ones do, whatever the cuts and threads."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import khop._core as _core
from khop.kernels.assign import MOST_PARTS, Assigner, InEdges, Limit, Score
from khop.kernels.csc import build_csc
from reference.assign import PlainAssigner
from reference.hops import PlainGraph
from support.random_graphs import graphs

BLOCK = 128
NO_MEMBERS = torch.empty(0, dtype=torch.uint8)


def _numbered(graph: PlainGraph, dtype: torch.dtype) -> tuple[list[int], list[InEdges]]:
    opened = graph.opened(dtype)
    first = [0, *accumulate(graph.counts.values())]
    of_type = dict(zip(graph.counts, first, strict=False))
    return first, [InEdges(of_type[t[0]], of_type[t[2]], opened.csc(t)) for t in graph.edges]


@st.composite
def _limits(draw: st.DrawFn, types: int, nodes: int) -> list[Limit]:
    kinds = st.builds(
        Limit,
        st.tuples(*[st.integers(0, 3)] * types),
        st.integers(0, nodes + 3),
        member=st.sampled_from([0, 1, 2]),
        by_degree=st.booleans(),
    )
    return draw(st.lists(kinds, min_size=1, max_size=3))


@given(st.data(), graphs(), st.integers(1, 4), st.sampled_from(Score), st.integers(1, 5))
def test_every_pass_is_that_of_the_plain_assigner(
    data: st.DataObject, graph: PlainGraph, parts: int, score: Score, cluster_limit: int
) -> None:
    first, edges = _numbered(graph, data.draw(st.sampled_from([torch.int32, torch.int64])))
    limits = data.draw(_limits(len(graph.counts), first[-1]))
    members = data.draw(st.lists(st.integers(0, 3), min_size=first[-1], max_size=first[-1]))
    bits = torch.tensor(members, dtype=torch.uint8)
    native = Assigner(first, edges, limits, bits, parts=parts, score=score, cluster_limit=cluster_limit)
    plain = PlainAssigner(first, edges, limits, members, parts, score, cluster_limit)
    for _ in range(data.draw(st.integers(0, 2))):
        native.cluster(0, first[-1])
        plain.cluster()
    blocks = native.num_cluster_blocks()
    for name in data.draw(st.permutations(["place_clusters", "stream", "stream", "refine"])):
        if name == "refine" and first[-1] and int(native.parts().max()) >= parts:
            continue  # nothing to refine: it was not placed
        getattr(native, name)(0, blocks if name == "place_clusters" else first[-1])
        getattr(plain, name)()
        assert native.parts().tolist() == plain.part, name
        assert native.loads().tolist() == [load for loads in plain.loads for load in loads], name


def _large(wide: bool) -> tuple[list[int], list[InEdges], list[Limit]]:
    """65 blocks of nodes, most neighbors nearby."""
    nodes, generator = 64 * BLOCK + 7, torch.Generator().manual_seed(1)
    sources = torch.randint(nodes, (60_000,), generator=generator)
    near = (sources + torch.randint(-90, 90, (60_000,), generator=generator)) % nodes
    csc, _ = build_csc(sources, near, nodes, nodes)
    csc = csc if not wide else type(csc)(csc.indptr, csc.indices.long())
    return (
        [0, nodes],
        [InEdges(0, 0, csc)],
        [Limit((1,), nodes // 3 + 200), Limit((1,), 25_000, by_degree=True)],
    )


def _assigned(kind: type, threads: int, step: int, *, wide: bool = False) -> list[int]:
    first, edges, limits = _large(wide)
    core = kind(
        first,
        [(e.first_source, e.first_destination, e.csc.indptr, e.csc.indices) for e in edges],
        NO_MEMBERS,
        [(list(limit.by_type), limit.member, limit.by_degree, limit.capacity) for limit in limits],
        3,
        False,
        200,
    )
    assert core.block() == BLOCK
    for name in ("cluster", "cluster", "place_clusters", "place_clusters", "stream", "refine"):
        count = core.num_cluster_blocks() if name == "place_clusters" else first[-1]
        size = 1 if name == "place_clusters" else step
        for begin in range(0, count, size):
            getattr(core, name)(begin, min(begin + size, count), threads)
    parts: list[int] = core.parts().tolist()
    return parts


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("step", [BLOCK, 99 * BLOCK])
def test_neither_threads_nor_cuts_of_a_pass_change_the_parts(threads: int, step: int) -> None:
    assert _assigned(_core.Assigner32, threads, step) == _assigned(_core.Assigner32, 1, 99 * BLOCK)


@pytest.mark.parametrize("wide", [False, True])
def test_labels_of_64_bits_and_wide_ids_give_the_same_parts(wide: bool) -> None:
    assert _assigned(_core.Assigner64, 2, BLOCK, wide=wide) == _assigned(_core.Assigner32, 1, BLOCK)


def test_neighbors_come_together_and_no_part_is_too_full() -> None:
    first, edges, limits = _large(False)
    assigner = Assigner(first, edges, limits, NO_MEMBERS, parts=3, cluster_limit=300)
    for name in ("cluster", "cluster", "place_clusters", "place_clusters", "stream", "stream", "refine"):
        count = assigner.num_cluster_blocks() if name == "place_clusters" else first[-1]
        getattr(assigner, name)(0, count, threads=2)
    parts, csc = assigner.parts(), edges[0].csc
    rows = torch.repeat_interleave(torch.arange(first[-1]), csc.indptr.diff())
    cut = (parts[rows] != parts[csc.indices]).float().mean()
    assert float(cut) < 0.3  # by chance two thirds
    loads = assigner.loads().view(3, 2)
    assert (loads <= torch.tensor([limit.capacity for limit in limits])).all()
    assert loads.sum(0).tolist() == [first[-1], csc.num_edges]


@pytest.mark.parametrize("parts", [0, MOST_PARTS + 1])
def test_an_impossible_number_of_parts_is_an_error(parts: int) -> None:
    with pytest.raises(ValueError, match=f"parts {parts}: must be 1 to 4096"):
        Assigner([0, 1], [], [Limit((1,), 1)], NO_MEMBERS, parts=parts)


def test_rows_that_no_node_has_are_an_error() -> None:
    csc, _ = build_csc(torch.tensor([0]), torch.tensor([2]), 1, 3)
    with pytest.raises(ValueError, match="3 rows from node 1 on: a type has other nodes"):
        Assigner([0, 3], [InEdges(0, 1, csc)], [Limit((1,), 1)], NO_MEMBERS, parts=2)


def test_something_has_to_be_shared_out() -> None:
    with pytest.raises(ValueError, match="no limits: give the quantities to balance"):
        Assigner([0, 1], [], [], NO_MEMBERS, parts=2)
