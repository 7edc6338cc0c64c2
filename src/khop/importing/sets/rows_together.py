"""Streams of rows read in step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy.typing as npt

Numbers = npt.NDArray[Any]


def rows_together(streams: Sequence[Iterator[Numbers]], name: str) -> Iterator[tuple[Numbers, ...]]:
    """Yield the same rows of all streams, whatever blocks they come in.

    ValueError unless all streams have the same number of rows; `name` for errors.
    """
    held = [next(stream, None) for stream in streams]
    while True:
        blocks = [block for block in held if block is not None]
        if len(blocks) < len(held):
            break
        rows = min(len(block) for block in blocks)
        yield tuple(block[:rows] for block in blocks)
        held = [
            block[rows:] if len(block) > rows else next(stream, None)
            for block, stream in zip(blocks, streams, strict=True)
        ]
    if any(block is not None and len(block) for block in held):
        raise ValueError(f"{name}: edges and their columns have different numbers of rows; download it again")
