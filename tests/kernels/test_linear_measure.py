"""The measurement of the ways to compute a layer."""

from __future__ import annotations

import pytest
import torch

from khop.kernels import linear_measure
from khop.kernels.linear_measure import fastest


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_the_measurement_finds_a_way_that_works_and_leaves_torch_as_it_was(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear_measure, "ROWS", 96)
    monkeypatch.setattr(linear_measure, "TRIAL_ROWS", 64)
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found = fastest(dtype, "narrow")
    assert found.blocks is None or found.blocks.can_compute(dtype)
    assert found.over_float32 > 0
    assert (found.over_float32 == 1) is (dtype != torch.bfloat16)
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)
