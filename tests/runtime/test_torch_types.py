"""Types of torch are those of its public names, where it has these."""

from __future__ import annotations

import torch
from torch import distributed

from khop.runtime import torch_types


def test_stores_and_buckets_are_torchs() -> None:
    for name in ("PrefixStore", "Store", "TCPStore", "GradBucket"):
        own = getattr(torch_types, name)
        assert own is getattr(distributed, name)
        assert own.__module__.startswith(torch.__name__)
