"""A package graph as one small file: the format in which khop ships Debian's package graph."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from khop.datasets.debian.facts import EDGE_TYPES, NODE_TYPES, PACKAGE, Facts, Pairs

Arrays = Mapping[str, npt.NDArray[Any]]


def write_snapshot(path: str | os.PathLike[str], facts: Facts) -> None:
    """Write a compressed .npz of plain arrays: the same bytes for the same facts (and the same zlib).

    Pairs are stored as `NAME.counts`, the number of pairs per left id, and `NAME.right`.
    """
    arrays: dict[str, npt.NDArray[Any]] = {
        "counts": np.array([facts.counts[node_type] for node_type in NODE_TYPES], np.int64),
        "sections": facts.sections,
        "tags": np.array(facts.tags, np.str_),
        **_stored("words", facts.words, facts.counts[PACKAGE]),
    }
    for edge_type in EDGE_TYPES:
        arrays |= _stored("__".join(edge_type), facts.edges[edge_type], facts.counts[PACKAGE])
    np.savez_compressed(path, allow_pickle=False, **arrays)


def read_snapshot(data: bytes) -> Facts:
    """Read facts written by `write_snapshot`. Nothing is unpickled."""
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return Facts(
            counts=dict(zip(NODE_TYPES, arrays["counts"].tolist(), strict=True)),
            sections=arrays["sections"],
            words=_read("words", arrays),
            tags=tuple(arrays["tags"].tolist()),
            edges={edge_type: _read("__".join(edge_type), arrays) for edge_type in EDGE_TYPES},
        )


def _stored(name: str, pairs: Pairs, num_left: int) -> dict[str, npt.NDArray[Any]]:
    counts = np.bincount(pairs.left, minlength=num_left)
    narrow = np.min_scalar_type(int(counts.max(initial=0)))
    return {f"{name}.counts": counts.astype(narrow), f"{name}.right": pairs.right}


def _read(name: str, arrays: Arrays) -> Pairs:
    counts = arrays[f"{name}.counts"]
    return Pairs(np.repeat(np.arange(len(counts), dtype=np.int32), counts), arrays[f"{name}.right"])
