"""Negatives of several kinds for each link: those of each kind alone, side by side."""

from __future__ import annotations

import pytest
import torch

import khop
from khop.draw import DrawKey, NegativeMode
from khop.sampling.links.link_negatives import PART_DRAWS, LinkNegatives
from khop.sampling.seeds import LinkSeeds, SeedLinks
from support.shop_links import BUYS, shop

EDGES = torch.tensor([[0, 1, 2, 3, 4], [1, 1, 0, 5, 2]])
GIVEN = torch.tensor([[5, 4]] * 5)
PARTS = (
    khop.GivenNegatives(),
    khop.UniformNegatives(3, group=2),
    khop.UniformNegatives(2, exact=True),
    khop.DegreeNegatives(2),
)


def drawn(negatives: khop.draw.Negatives, key: int = 9, first: int = 0) -> torch.Tensor:
    given = any(isinstance(part, khop.GivenNegatives) for part in getattr(negatives, "parts", [negatives]))
    positions = torch.arange(first, 5)
    links = SeedLinks(EDGES[:, first:], positions, EDGES, negatives=GIVEN[first:] if given else None)
    found = LinkNegatives(shop(), negatives, khop.Uniform()).of(BUYS, LinkSeeds({BUYS: links}, DrawKey(key)))
    assert found.destinations is not None
    assert found.sources is None
    return found.destinations


def test_each_part_draws_as_it_does_alone_under_its_key() -> None:
    mixed = drawn(khop.MixedNegatives(PARTS))
    widths = [2, 3, 2, 2]
    for number, (part, found) in enumerate(zip(PARTS, mixed.split(widths, dim=1), strict=True)):
        assert torch.equal(found, drawn(part, 9 + number * PART_DRAWS))
    shared = mixed[:, 2:5]
    assert torch.equal(shared[0], shared[1])
    assert torch.equal(shared[2], shared[3])
    assert torch.equal(drawn(khop.MixedNegatives(PARTS), first=3), mixed[3:])


def test_batches_have_the_negatives_of_all_parts() -> None:
    negatives = khop.MixedNegatives((khop.UniformNegatives(2), khop.DegreeNegatives(1)))
    sampler = khop.LinkSampler(shop(), [2], negatives=negatives)
    batch = khop.Loader(sampler, khop.Links({BUYS: EDGES}), 5).batch(0, 0)
    assert batch.links[BUYS].pairs_per_link == 4
    assert batch.links[BUYS].labels is not None
    assert batch.links[BUYS].labels.tolist() == [1.0] * 5 + [0.0] * 15
    assert len(sampler.needs([BUYS])) == 2


def test_parts_that_do_not_fit_are_refused() -> None:
    uniform = khop.UniformNegatives(2)
    for parts, words in (
        ((uniform,), "must be two or more"),
        ((uniform, 5), "5 is not a kind of negatives"),
        ((khop.GivenNegatives(), khop.GivenNegatives()), "leave one out"),
        ((uniform, khop.UniformNegatives(2, NegativeMode.TRIPLET)), "same mode and the same corrupt"),
    ):
        with pytest.raises(ValueError, match=words):
            khop.MixedNegatives(parts)  # type: ignore[arg-type]
