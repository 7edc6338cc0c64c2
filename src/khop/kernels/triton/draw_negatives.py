"""Negatives drawn on the device, bitwise equal to `khop.kernels.draw_negatives`."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from khop.kernels.csc import Csc
from khop.kernels.philox import WIDE_DEGREE
from khop.kernels.triton.launch import Variant, launch
from khop.kernels.triton.words import draw_below, first_above

_SLOTS = 128  # per program
_UNSPECIALIZED = ["stream", "candidates", "num_sources", "capacity", "per_positive"]


@dataclass(frozen=True)
class DeviceLinks:
    """Links that need negatives, on the device, and the key of their draws."""

    sources: Tensor  # int64 (capacity), rows of the partners
    positions: Tensor  # int64 (capacity), in the epoch's global order
    count: Tensor  # int32 (1), links in use
    key: Tensor  # int64 (1), the bits of the batch's key
    stream: int
    limits: Tensor | None = None  # int64 (capacity), only ranks below are drawn; from 0 to the candidates


@triton.jit
def last_gap(
    ranks: tl.tensor,
    partners_before: tl.tensor,
    weights_before: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    drawn: tl.tensor,
    live: tl.tensor,
) -> tl.tensor:
    """Return the first partner of each row with more than `drawn` of the free weight before it."""
    low = tl.where(live, begin, 0)
    high = tl.where(live, end, 0)
    while tl.max((low < high).to(tl.int32), 0) > 0:
        is_open = low < high
        middle = (low + high) >> 1
        rank = tl.load(ranks + middle, mask=is_open, other=0).to(tl.int64)
        if weights_before is None:
            free = rank - (middle - begin)
        else:
            free = tl.load(weights_before + rank, mask=is_open, other=0)
            free -= tl.load(partners_before + middle, mask=is_open, other=0)
        high = tl.where(is_open & (free > drawn), middle, high)
        low = tl.where(is_open & (free <= drawn), middle + 1, low)
    return low


@triton.jit
def partners_weight(
    ranks: tl.tensor,
    partners_before: tl.tensor,
    weights_before: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    live: tl.tensor,
) -> tl.tensor:
    """Return the weight of each row's partners from `begin` to `end`."""
    weight = end - begin
    if weights_before is not None:
        some = live & (begin < end)
        last = tl.load(ranks + end - 1, mask=some, other=0)
        weight = tl.load(partners_before + end - 1, mask=some, other=0)
        weight += tl.load(weights_before + last + 1, mask=some, other=0)
        weight -= tl.load(weights_before + last, mask=some, other=0)
    return weight


@triton.jit(do_not_specialize=_UNSPECIALIZED)
def draw_ranks(
    indptr: tl.tensor,
    ranks: tl.tensor,
    partners_before: tl.tensor,
    weights_before: tl.tensor,
    sources: tl.tensor,
    positions: tl.tensor,
    limits: tl.tensor,
    count: tl.tensor,
    key: tl.tensor,
    drawn_ranks: tl.tensor,
    culprit: tl.tensor,
    stream: tl.tensor,
    candidates: tl.tensor,
    num_sources: tl.tensor,
    capacity: tl.tensor,
    per_positive: tl.tensor,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Draw a rank per slot and thread: a position in the free weight, then its rank."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    link = at // per_positive
    number = (at % per_positive).to(tl.int32)
    inside = link < capacity
    live = link < tl.load(count)
    limit = tl.zeros([BLOCK], tl.int64) + candidates
    if limits is not None:
        limit = tl.load(limits + link, mask=live, other=-1)
        live = live & (limit >= 0) & (limit <= candidates)
    free = limit
    if weights_before is not None:
        free = tl.load(weights_before + limit, mask=live, other=0)
    begin = tl.zeros([BLOCK], tl.int64)
    end, cut = begin, begin
    if indptr is not None:
        source = tl.load(sources + link, mask=live, other=-1)
        live = live & (source >= 0) & (source < num_sources)
        begin = tl.load(indptr + source, mask=live, other=0)
        end = tl.load(indptr + source + 1, mask=live, other=0)
        if limits is not None:
            end = first_above(ranks, None, begin, end, limit - 1, live)
        cut = partners_weight(ranks, partners_before, weights_before, begin, end, live)
    free -= cut
    tl.atomic_min(culprit + link * 0, link, mask=live & (free <= 0), sem="relaxed")
    there = live & (free > 0)
    keys = tl.load(key + link * 0).to(tl.uint64, bitcast=True)
    id = tl.load(positions + link, mask=live, other=0).to(tl.uint64, bitcast=True)
    drawn = draw_below(keys, id, stream, number, free, free, WIDE)
    if indptr is not None:
        gap = last_gap(ranks, partners_before, weights_before, begin, end, drawn, there)
        if weights_before is None:
            drawn += gap - begin
        else:
            inner = there & (gap < end)
            drawn += tl.where(inner, tl.load(partners_before + gap, mask=inner, other=0), cut)
    if weights_before is not None:
        zero = tl.zeros([BLOCK], tl.int64)
        drawn = first_above(weights_before, None, zero, zero + candidates + 1, drawn, there) - 1
    tl.store(drawn_ranks + at, tl.where(there, drawn, -1), mask=inside)


def draw_negatives(
    candidates: int,
    weights_before: Tensor | None,
    partners: Csc | None,
    partners_before: Tensor | None,
    links: DeviceLinks,
    ranks: Tensor,
    culprit: Tensor,
) -> None:
    """Draw ranks for every link into `ranks`, int64 (capacity, per link); -1 for links that are not in use.

    The operands before `links` are those of `khop.kernels.draw_negatives`. A link without drawable candidates
    gets -1 and lowers `culprit`, int64 (1), to its number. A link with a source or limit outside its range
    counts as not in use. Does not synchronize with the device.
    """
    capacity, per_positive = ranks.shape
    stream = links.stream - (1 << 32) if links.stream >> 31 else links.stream
    launch(
        *(draw_ranks, triton.cdiv(capacity * per_positive, _SLOTS), links.positions),
        *((None, None, None) if partners is None else (partners.indptr, partners.indices, partners_before)),
        *(weights_before, links.sources, links.positions, links.limits, links.count, links.key),
        *(ranks, culprit, stream, candidates),
        *(0 if partners is None else partners.num_rows, capacity, per_positive),
        WIDE=weights_before is not None or candidates >= WIDE_DEGREE,
        BLOCK=_SLOTS,
    )


_TYPES = {
    **dict.fromkeys(("indptr", "partners_before", "weights_before", "sources", "positions"), "*i64"),
    **dict.fromkeys(("limits", "key", "drawn_ranks", "culprit"), "*i64"),
    **dict.fromkeys(("ranks", "count"), "*i32"),
    **dict.fromkeys(_UNSPECIALIZED, "i32"),
}
_ANY = dict.fromkeys(("indptr", "ranks", "partners_before"))
_EVEN = dict.fromkeys(("partners_before", "weights_before"))
VARIANTS = (
    Variant(
        *("uniform", draw_ranks, _TYPES, {**_ANY, **_EVEN, "limits": None, "WIDE": False, "BLOCK": _SLOTS})
    ),
    Variant("exact", draw_ranks, _TYPES, {**_EVEN, "limits": None, "WIDE": False, "BLOCK": _SLOTS}),
    Variant("exact, limited, 64 bits", draw_ranks, _TYPES, {**_EVEN, "WIDE": True, "BLOCK": _SLOTS}),
    Variant(
        *("exact, 64-bit ids", draw_ranks, {**_TYPES, "ranks": "*i64"}),
        {**_EVEN, "limits": None, "WIDE": True, "BLOCK": _SLOTS},
    ),
    Variant("by weight", draw_ranks, _TYPES, {**_ANY, "limits": None, "WIDE": True, "BLOCK": _SLOTS}),
    Variant("exact, weighted, limited", draw_ranks, _TYPES, {"WIDE": True, "BLOCK": _SLOTS}),
)
