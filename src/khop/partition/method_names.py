"""The names of the partitioning methods; `partition.METHODS` has an entry for each."""

from __future__ import annotations

METHOD_NAMES = ("ldg", "fennel", "metis", "random", "range", "hash")
