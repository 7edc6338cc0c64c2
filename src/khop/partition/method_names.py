"""The names of the ways to partition a graph; `partition.METHODS` has an entry for each."""

from __future__ import annotations

METHOD_NAMES = ("ldg", "fennel", "metis", "random", "range", "hash")
