"""Store and bucket types of torch, imported from the one module that its type stubs declare them in."""

from __future__ import annotations

from torch._C._distributed_c10d import GradBucket, PrefixStore, Store, TCPStore

__all__ = ["GradBucket", "PrefixStore", "Store", "TCPStore"]
