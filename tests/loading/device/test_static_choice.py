"""Loaders without kernels have no batches with static shapes."""

from __future__ import annotations

import pytest
import torch

import khop
from khop.errors import Unsupported
from support.small_graphs import one_type


def test_batches_of_the_cpu_have_no_static_shapes() -> None:
    loader = khop.Loader(khop.NeighborSampler(one_type().store, [2]), torch.arange(5), 2)
    with pytest.raises(Unsupported, match="the CPU draws the neighbors; place the edges where the GPU"):
        loader.static_batches()
