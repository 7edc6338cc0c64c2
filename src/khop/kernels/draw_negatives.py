"""Exact negatives without rejection: each draw selects one of the destinations not linked to the source."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import khop._core as _core
from khop.draw import DrawKey
from khop.kernels.choice import Engine, engine
from khop.kernels.csc import Csc
from khop.kernels.philox import WIDE_DEGREE, WORD, philox_reference, reduce_wide, reduce_words, signed


@dataclass(frozen=True)
class Candidates:
    """The nodes that may be drawn, by rank: a node's index in an order of the candidates."""

    count: int
    weights_before: Tensor | None = None  # int64 (count + 1), prefix sums; None: all weigh 1


@dataclass(frozen=True)
class Partners:
    """For every source, the candidates that must not be drawn for it."""

    ranks: Csc  # rows are sources; ranks ascend within a row, without duplicates
    weights_before: Tensor | None = None  # int64 (same length), the weight of the earlier entries of the row

    @classmethod
    def of(cls, ranks: Csc, candidates: Candidates) -> Partners:
        """Return partners with the candidates' weights."""
        before = candidates.weights_before
        if before is None:
            return cls(ranks)
        own = before[ranks.indices.long() + 1] - before[ranks.indices.long()]
        total = torch.cat([own.new_zeros(1), own.cumsum(0)])
        starts = torch.repeat_interleave(total[ranks.indptr[:-1]], ranks.indptr.diff())
        return cls(ranks, total[:-1] - starts)


@dataclass(frozen=True)
class NothingLeft:
    """A link without drawable candidates: all are partners, or after the link's limit."""

    link: int


@dataclass(frozen=True, eq=False)
class NegativeDraw:
    """A draw of `per_positive` ranks per link, among the candidates that are not partners of its source."""

    candidates: Candidates
    partners: Partners | None
    sources: Tensor  # int64 (links), rows of `partners`
    positions: Tensor  # int64 (links), of the links in the epoch's order
    per_positive: int
    key: DrawKey
    stream: int
    limits: Tensor | None = None  # int64 (links): only ranks below a link's limit are drawn; None: all ranks

    def check(self) -> None:
        """Raise ValueError unless all operands have one number per link."""
        given = {"sources": self.sources, "positions": self.positions, "limits": self.limits}
        shape = self.positions.shape
        for name, ids in given.items():
            if ids is not None and (ids.dtype != torch.int64 or ids.shape != shape or ids.dim() != 1):
                raise ValueError(
                    f"{name} are {ids.dtype} {tuple(ids.shape)}: must be int64 ({self.positions.numel()})"
                )

    def bounded(self) -> list[tuple[str, Tensor, int]]:
        """Return name, values and upper bound of each operand with a range."""
        bounded = []
        if self.partners is not None:
            bounded.append(("sources", self.sources, self.partners.ranks.num_rows))
        if self.limits is not None:
            bounded.append(("limits", self.limits, self.candidates.count + 1))
        return bounded


def draw_negatives(draw: NegativeDraw) -> Tensor | NothingLeft:
    """Draw int64 (links, per_positive) ranks by weight.

    The draws of a link depend only on (key, stream, its position) and its drawable candidates; a candidate
    may repeat. Runs without the GIL.
    """
    draw.check()
    by = engine(draw.positions.device)
    if by is Engine.TRITON:
        return _by_triton(draw)
    for name, ids, bound in draw.bounded():
        if ids.numel():
            low, high = ids.aminmax()
            _check_range(name, int(low), int(high), bound)
    if by is Engine.TORCH:
        return draw_negatives_reference(draw)
    candidates, partners = draw.candidates, draw.partners
    ranks, culprit = _core.draw_negatives(
        candidates.count,
        candidates.weights_before,
        None if partners is None else partners.ranks.indptr,
        torch.empty(0, dtype=torch.int32) if partners is None else partners.ranks.indices,
        None if partners is None else partners.weights_before,
        draw.sources.contiguous(),
        draw.positions.contiguous(),
        None if draw.limits is None else draw.limits.contiguous(),
        draw.per_positive,
        draw.key.value,
        draw.stream,
    )
    return ranks if culprit < 0 else NothingLeft(culprit)


def draw_negatives_reference(draw: NegativeDraw) -> Tensor | NothingLeft:
    """The same as `draw_negatives` in torch, link by link, on any device."""
    candidates, device, drawn = draw.candidates, draw.positions.device, []
    links = zip(draw.sources.tolist(), draw.positions.tolist(), strict=True)
    for link, (source, position) in enumerate(links):
        limit = candidates.count if draw.limits is None else int(draw.limits[link])
        weights = torch.ones(candidates.count, dtype=torch.int64, device=device)
        if candidates.weights_before is not None:
            weights = candidates.weights_before.diff()
        weights[limit:] = 0
        if draw.partners is not None:
            row = draw.partners.ranks
            weights[row.indices[row.indptr[source] : row.indptr[source + 1]].long()] = 0
        ends = weights.cumsum(0)
        free = int(ends[-1]) if candidates.count else 0
        if free == 0:
            return NothingLeft(link)
        points = _below(draw.key, position, draw.stream, free, draw.per_positive, device)
        drawn.append(torch.searchsorted(ends, points, right=True))
    return torch.stack(drawn) if drawn else draw.positions.new_empty(0, draw.per_positive)


def _below(key: DrawKey, position: int, stream: int, bound: int, count: int, device: torch.device) -> Tensor:
    """Return the draws of a row of degree `bound`, with replacement, keyed by the position."""
    blocks = torch.arange((2 * count + 3) // 4, device=device)
    counters = torch.stack(
        [
            torch.full_like(blocks, position & WORD),
            torch.full_like(blocks, position >> 32),
            torch.full_like(blocks, stream),
            blocks,
        ],
        dim=1,
    )
    keys = torch.tensor([key.value & WORD, key.value >> 32], device=device).expand(blocks.numel(), 2)
    words = philox_reference(keys, counters).flatten()
    bounds = torch.tensor(bound, device=device)
    if bound < WIDE_DEGREE:
        return reduce_words(words[:count], bounds)
    return reduce_wide(words[0 : 2 * count : 2], words[1 : 2 * count : 2], bounds)


def _by_triton(draw: NegativeDraw) -> Tensor | NothingLeft:
    """Draw on a GPU. The host reads the device once, after the draw, to find errors."""
    from khop.kernels.triton.draw_negatives import DeviceLinks
    from khop.kernels.triton.draw_negatives import draw_negatives as by_triton

    links, device = draw.positions.numel(), draw.positions.device
    ranks = torch.empty(links, draw.per_positive, dtype=torch.int64, device=device)
    if links == 0:
        return ranks
    culprit = torch.full((1,), links, device=device)
    operands = DeviceLinks(
        draw.sources.contiguous(),
        draw.positions.contiguous(),
        torch.full((1,), links, dtype=torch.int32, device=device),
        torch.full((1,), signed(draw.key.value), device=device),
        draw.stream,
        None if draw.limits is None else draw.limits.contiguous(),
    )
    candidates, partners = draw.candidates, draw.partners
    rows, before = (None, None) if partners is None else (partners.ranks, partners.weights_before)
    by_triton(candidates.count, candidates.weights_before, rows, before, operands, ranks, culprit)
    bounded = draw.bounded()
    ends = [end.view(1) for _, ids, _ in bounded for end in ids.aminmax()]
    first, *read = torch.cat([culprit, *ends]).tolist()
    for (name, _, bound), low, high in zip(bounded, read[::2], read[1::2], strict=True):
        _check_range(name, low, high, bound)
    return ranks if first == links else NothingLeft(first)


def _check_range(name: str, low: int, high: int, bound: int) -> None:
    if low < 0 or high >= bound:
        raise ValueError(f"{name} from {low} to {high}: must be from 0 to {bound - 1}")
