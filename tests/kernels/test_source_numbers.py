"""Numbers of sources: of one generation a batch, or spread over generations."""

from __future__ import annotations

import pytest
import torch

from khop.draw import DrawKey, Purpose
from khop.kernels.source_numbers import SourceNumbers
from khop.testing import reference

IDS = torch.arange(4000) * 1_000_003


def numbers(step: int, period: int, epoch: int = 2) -> torch.Tensor:
    return SourceNumbers.of(DrawKey.of(5, Purpose.HOP, epoch, step), 17, period).keys(IDS)


@pytest.mark.parametrize("period", [1, 2, 5, 32])
@pytest.mark.parametrize("step", [0, 1, 4, 33])
def test_a_node_has_the_number_of_its_generation(step: int, period: int) -> None:
    found = [number % 2**64 for number in numbers(step, period).tolist()]
    for place in range(0, 4000, 97):
        node = int(IDS[place])
        generation = (step + ((reference.mix64(node) >> 32) * period >> 32)) // period
        key = reference.draw_key(5, Purpose.HOP, 2, generation)
        assert found[place] == reference.mix64(reference.mix64(key ^ reference.mix64(17)) ^ node)


def test_one_node_in_kappa_changes_at_each_step() -> None:
    for step in range(12):
        changed = (numbers(step, 8) != numbers(step + 1, 8)).double().mean()
        assert 0.1 < float(changed) < 0.15
    assert bool((numbers(0, 8) != numbers(8, 8)).all())
    assert bool((numbers(0, 1) != numbers(1, 1)).all())
    assert bool((numbers(0, 8) != numbers(0, 8, epoch=3)).all())


def test_a_key_without_an_epoch_is_one_of_step_0() -> None:
    alone = SourceNumbers.of(DrawKey(99), 17, 8)
    assert torch.equal(alone.keys(IDS), SourceNumbers.of(DrawKey(99), 17, 1).keys(IDS))


def test_a_further_draw_keeps_its_distance_to_the_key() -> None:
    key = DrawKey.of(5, Purpose.HOP, 2, 9)
    assert key.at_step(9) == key
    assert key.at_step(4) == DrawKey.of(5, Purpose.HOP, 2, 4)
    assert key.plus(3).at_step(4) == DrawKey.of(5, Purpose.HOP, 2, 4).plus(3)
