"""A sampler gives the same samples whichever engine carries out its operations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from khop import DrawKey, Expansion, NeighborSampler, Seeds, Temporal
from khop.graph.store import CscGraph
from khop.kernels.choice import Engine, forcing
from khop.sampling.sampler import Trees
from support.random_graphs import as_seeds, ring
from support.same_samples import assert_same
from support.timed_graphs import RULES, timed_graphs
from support.triton_rows import DEVICE

EXPANSIONS = pytest.mark.parametrize("expansion", list(Expansion))
ON_A_GPU = pytest.mark.skipif(DEVICE.type != "cpu", reason="tensors on the CPU need Triton's interpreter")
OTHERS = pytest.mark.parametrize("engine", [Engine.TORCH, pytest.param(Engine.TRITON, marks=ON_A_GPU)])


@OTHERS
@EXPANSIONS
@pytest.mark.parametrize("trees", ["merged", "disjoint"])
def test_the_engine_changes_no_sample(expansion: Expansion, trees: Trees, engine: Engine) -> None:
    seeds = as_seeds({"node": [5, 9, 5, 30, 0]})

    def sampler() -> NeighborSampler:
        return NeighborSampler(ring(60, 7), [4, 3], expansion=expansion, trees=trees, edge_ids=True)

    expected = sampler().sample(seeds, DrawKey(3))
    with forcing(engine):
        made = sampler()
        for _ in range(2):
            assert_same(made.sample(seeds, DrawKey(3)), expected)


@OTHERS
@given(asked=timed_graphs(), rule=RULES, fanouts=st.lists(st.sampled_from([-1, 0, 1, 3]), max_size=2))
def test_the_engine_changes_no_sample_in_time(
    asked: tuple[CscGraph, Seeds], rule: Temporal, fanouts: list[int], engine: Engine
) -> None:
    graph, seeds = asked
    expected = NeighborSampler(graph, fanouts, rule=rule, edge_ids=True).sample(seeds, DrawKey(3))
    with forcing(engine):
        sampler = NeighborSampler(graph, fanouts, rule=rule, edge_ids=True)
        assert_same(sampler.sample(seeds, DrawKey(3)), expected)
