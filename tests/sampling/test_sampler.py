"""Defaults of a sampler of one's own, which writes `sample` alone."""

from __future__ import annotations

import pytest
import torch

from khop import DrawKey, Seeds
from khop.batch import Sample
from khop.errors import Unsupported
from khop.sampling.sampler import LinkSeeds, SamplerBase, SeedLinks
from support.random_graphs import ring, seeds


class Alone(SamplerBase):
    """Samples of the seeds without any neighbor."""

    def sample(self, seeds: Seeds, key: DrawKey) -> Sample:
        return Sample(dict(seeds.nodes), (), {t: torch.arange(ids.numel()) for t, ids in seeds.nodes.items()})


def test_a_sampler_that_writes_sample_alone_has_the_rest() -> None:
    sampler = Alone(ring(5, 2))
    assert (sampler.num_layers, sampler.seed_kinds, sampler.exact_fanouts) == (
        None,
        frozenset({"nodes"}),
        None,
    )
    assert tuple(sampler.needs({"node"})) == ()
    assert sampler.visits({"node": torch.arange(3)}, 2) is None
    assert sampler.with_threads(4) is sampler
    assert sampler.for_evaluation(sampler.graph, [2], edge_ids=False) is None
    assert sampler.sample(seeds(3, 1), DrawKey(1)).nodes["node"].tolist() == [3, 1]
    with pytest.raises(Unsupported, match="Alone"):
        sampler.for_kernels()
    with pytest.raises(ValueError, match="must be a graph"):
        Alone(3)  # type: ignore[arg-type]


def test_seeds_are_counted_over_types_and_links() -> None:
    ends = torch.zeros(2, 4, dtype=torch.int64)
    links = SeedLinks(ends, torch.arange(4), ends)
    nodes = {"user": torch.arange(3), "item": torch.arange(2)}
    of_nodes = Seeds(nodes, {t: torch.arange(ids.numel()) for t, ids in nodes.items()})
    assert of_nodes.count == 5
    both = Seeds(nodes, of_nodes.positions, links=LinkSeeds({("user", "buys", "item"): links}, DrawKey(1)))
    assert both.count == 9
