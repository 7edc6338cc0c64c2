"""Equal seeds give equal first weights, and leave torch's generator alone."""

from __future__ import annotations

import torch
from torch import nn

from khop.training.initial import seeded


def test_equal_seeds_give_equal_weights_and_others_do_not() -> None:
    weights = [seeded(seed, lambda: nn.Linear(3, 2)).weight for seed in (7, 7, 8)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_the_global_generator_is_not_advanced() -> None:
    before = torch.get_rng_state()
    seeded(7, lambda: nn.Linear(3, 2))
    assert torch.equal(torch.get_rng_state(), before)
