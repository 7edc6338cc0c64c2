"""In-edges of a frontier with the smallest keys of each row: the reference of draws by `Labor` and `TopK`."""

from __future__ import annotations

import torch
from torch import Tensor

from khop.draw import Neighbors
from khop.kernels.draw_request import DrawRequest
from khop.kernels.philox import mix64_reference
from khop.kernels.source_numbers import SourceNumbers

_SIGN = -(1 << 63)


def sample_smallest_reference(request: DrawRequest) -> Neighbors:
    """Draw the edges with the smallest keys as `sample_hop` does, in plain torch, on any device."""
    begin, end = request.rows.bounds(request.csc)
    degree = end - begin
    counts = degree if request.fanout < 0 else degree.clamp(max=request.fanout)
    rows = torch.repeat_interleave(torch.arange(degree.numel(), device=degree.device), degree)
    starts = degree.cumsum(0) - degree
    places = torch.arange(rows.numel(), device=degree.device)
    edges = begin[rows] + places - starts[rows]
    ordered = _sorted_by(rows, *_keys(request, rows, edges))
    kept = torch.zeros_like(rows, dtype=torch.bool)
    kept[ordered] = places - starts[rows[ordered]] < counts[rows[ordered]]
    return request.neighbors(counts, edges[kept])


def _keys(request: DrawRequest, rows: Tensor, edges: Tensor) -> tuple[Tensor, ...]:
    """Return int64 (edges) to sort by within rows, the most significant first."""
    order = request.order
    if not isinstance(order, SourceNumbers):
        assert order is not None  # given to draws by keys
        return (order[edges],)
    ids = request.csc.indices[edges] if request.source_ids is None else request.source_ids[edges]
    ids = ids.long()
    numbers, keys = _occurrences(rows, ids), order.keys(ids)
    keys = torch.where(numbers == 0, keys, mix64_reference(keys ^ numbers))
    return keys ^ _SIGN, ids  # the order of unsigned numbers


def _occurrences(rows: Tensor, ids: Tensor) -> Tensor:
    """Return the number of earlier edges of the same row and source."""
    ordered = _sorted_by(rows, ids)
    is_first = torch.ones_like(rows, dtype=torch.bool)
    is_first[1:] = (rows[ordered].diff() != 0) | (ids[ordered].diff() != 0)
    places = torch.arange(rows.numel(), device=rows.device)
    firsts = torch.where(is_first, places, 0).cummax(0).values if rows.numel() else places
    return torch.empty_like(rows).index_copy_(0, ordered, places - firsts)


def _sorted_by(*keys: Tensor) -> Tensor:
    """Return positions sorted by keys, the most significant first; equal ones keep their order."""
    ordered = torch.arange(keys[0].numel(), device=keys[0].device)
    for key in reversed(keys):
        ordered = ordered[key[ordered].argsort(stable=True)]
    return ordered
