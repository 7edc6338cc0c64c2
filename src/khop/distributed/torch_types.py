"""Torch's stores and buckets by the one path under which its type stubs have them."""

from __future__ import annotations

from torch._C._distributed_c10d import GradBucket, PrefixStore, Store, TCPStore

__all__ = ["GradBucket", "PrefixStore", "Store", "TCPStore"]
