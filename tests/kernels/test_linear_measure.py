"""The measurement of the ways to compute a layer."""

from __future__ import annotations

import pytest
import torch

from khop.kernels import linear_measure
from khop.kernels.linear_blocks import Blocks
from khop.kernels.linear_measure import chosen, fastest


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


def test_a_near_tie_goes_to_the_fewest_rows_of_the_fastest_library() -> None:
    small, middle, large = (Blocks("onednn", rows) for rows in (1024, 2048, 4096))
    blas, widened = Blocks("blas", 1024), Blocks("onednn", 1024, in_float32=True)
    assert chosen({large: 1.0, middle: 1.05, small: 1.2}) == middle
    assert chosen({large: 1.0, middle: 1.2, small: 1.05}) == small
    assert chosen({large: 1.0, blas: 1.01, widened: 1.01, None: 1.02}) == large
    assert chosen({None: 1.0, small: 1.01}) is None
