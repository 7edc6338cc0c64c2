"""A digest of the edges of a type that does not depend on their order or on the node numbering."""

from __future__ import annotations

import torch
from torch import Tensor

from khop.kernels.csc import Csc
from khop.kernels.edge_spans import edge_spans
from khop.kernels.mix import mixed, signed

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
    for span in edge_spans(csc.indptr):
        numbers = torch.arange(span.rows.start, span.rows.stop)
        places = torch.arange(span.first, span.end) - span.per_edge(csc.indptr[span.rows])
        ends = csc.indices[span.first : span.end].long()
        ends = ends if sources is None else sources[ends]
        rows = span.per_edge(numbers if destinations is None else destinations[span.rows])
        words = ends * signed(_SOURCE) + mixed(rows * signed(_DESTINATION) + places * signed(_PLACE))
        total += int(mixed(words).sum())
    return total & _WORD
