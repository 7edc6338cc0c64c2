"""TF32 is switched on for a run alone."""

from __future__ import annotations

import pytest
import torch

from khop.training.products import products


def _fail(expected: str) -> None:
    assert torch.get_float32_matmul_precision() == expected
    torch.mm(torch.ones(2, 3), torch.ones(2, 3))


def test_products_are_in_tf32_within_the_block_only() -> None:
    before = torch.get_float32_matmul_precision()
    with products("float32"):
        assert torch.get_float32_matmul_precision() == before
    with pytest.raises(RuntimeError, match="mat1 and mat2"), products("tf32"):
        _fail("high")
    assert torch.get_float32_matmul_precision() == before
