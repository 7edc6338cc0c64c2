"""A digest of the edges of a type that does not depend on their order or on the node numbering."""

from __future__ import annotations

import torch
from torch import Tensor

from khop.kernels.csc import Csc
from khop.kernels.mix import mixed, signed

_CHUNK_ROWS = 1 << 16
_WORD = (1 << 64) - 1
# Odd constants of SplitMix64 and xxHash64.
_SOURCE, _DESTINATION, _PLACE = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9


def edge_digest(csc: Csc, sources: Tensor | None, destinations: Tensor | None) -> int:
    """Sum a 64-bit hash of (source, destination, position in the row) over all edges, modulo 2^64.

    `sources` and `destinations` map the ids in `csc` to int64 original ids; None: the ids are original.
    If the digest of a graph equals the sum over its parts, and so does the number of edges, then no edge is
    lost or duplicated and every row keeps its order. The chance of an undetected difference is one in 2^64.
    An edge from node 0 to node 0 at the first position has the hash 0, so the number has to be compared too.
    """
    csc.check()
    total = 0
    for begin in range(0, csc.num_rows, _CHUNK_ROWS):
        end = min(begin + _CHUNK_ROWS, csc.num_rows)
        offsets = csc.indptr[begin : end + 1]
        rows = torch.repeat_interleave(torch.arange(begin, end), offsets.diff())
        places = torch.arange(int(offsets[0]), int(offsets[-1])) - csc.indptr[rows]
        ends = csc.indices[int(offsets[0]) : int(offsets[-1])].long()
        ends = ends if sources is None else sources[ends]
        rows = rows if destinations is None else destinations[rows]
        words = ends * signed(_SOURCE) + mixed(rows * signed(_DESTINATION) + places * signed(_PLACE))
        total += int(mixed(words).sum())
    return total & _WORD
