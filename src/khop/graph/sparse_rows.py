"""Arrays of a graph folder of which single rows are read."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from khop.graph.npy import ArrayEntry, map_pages
from khop.kernels.memory import expect_sparse_reads


def map_sparse_array(path: Path, entry: ArrayEntry) -> Tensor:
    """The array, mapped to read single rows of a file larger than memory; otherwise like `map_array`.

    Reading it from one end to the other is slow: the kernel reads no page ahead.
    """
    array, pages = map_pages(path, entry)
    if pages is not None:
        expect_sparse_reads(array, pages)
    return array
