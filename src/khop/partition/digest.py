"""A number that all edges of a type have, whatever their order and however their nodes are numbered."""

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
    """The sum over all edges of a 64-bit hash of (source, destination, place in its row), modulo 2^64.

    `sources` and `destinations` are int64 original ids of the node types, by the ids that the edges have;
    None: the ids themselves. Equal digests of a whole and of the sum of its parts mean, but for one chance in
    2^64, that no edge is lost, none is there twice and every row has its order.
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
