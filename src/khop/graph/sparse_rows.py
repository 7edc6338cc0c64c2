"""Mapped arrays for reads of single rows."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from khop.graph.npy import ArrayEntry, map_pages
from khop.kernels.memory import expect_sparse_reads


def map_sparse_array(path: Path, entry: ArrayEntry) -> Tensor:
    """Map an array for reads of single rows from a file larger than memory; else like `map_array`.

    Sequential reads are slow: the kernel does no read-ahead.
    """
    array, pages = map_pages(path, entry)
    if pages is not None:
        expect_sparse_reads(array, pages)
    return array
