"""As test_disturbed.py, for the files of tests that take minutes then."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from support.disturbed_kernels import disturbed

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter runs on the CPU")
SLOW = ("batches", "draw_hop", "draw_negatives", "sample_uniform", "segment", "time_ranges", "to_csr")


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SLOW)
def test_kernels_pass_in_any_order_of_programs_and_over_filled_memory(name: str) -> None:
    done = disturbed(Path(__file__).parent / f"test_{name}.py")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
