"""Exact negatives between ranks: the sources that a rank is asked about, and what it has drawn, as bytes."""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

import torch
from torch import Tensor

from khop.distributed.pieces import Reader, as_bytes, check_below, filled, narrowest
from khop.draw import DrawKey, DrawnNegatives, Positives, mix64
from khop.graph.negatives import NothingLeft
from khop.schema import EdgeType

Span = tuple[int, int]  # the first id that a rank holds, and the one after its last


@dataclass(frozen=True)
class NegativeWire:
    """How one draw is written: what all ranks know of it alike."""

    per_positive: int
    candidates: int  # nodes of the destination type
    has_until: bool
    time_column: str | None
    digest: int  # of all that ranks have to agree on

    @classmethod
    def of(
        cls,
        edge_type: EdgeType,
        negatives: DrawnNegatives,
        positives: Positives,
        key: DrawKey,
        candidates: int,
    ) -> NegativeWire:
        """That of a draw among so many nodes."""
        has_until = positives.until is not None
        words = repr((edge_type, negatives, has_until, positives.time_column))
        digest = mix64(key.value ^ crc32(words.encode())) >> 1
        return cls(negatives.per_positive, candidates, has_until, positives.time_column, digest)

    def question(self, positives: Positives, span: Span) -> Tensor:
        """uint8: links for a rank that holds their sources."""
        sources = (positives.sources - span[0]).to(narrowest(span[1] - span[0]))
        pieces = [torch.tensor([self.digest, sources.numel()]), sources, positives.positions]
        return as_bytes(pieces if positives.until is None else [*pieces, positives.until])

    def positives(self, message: Tensor, span: Span) -> Positives:
        """What another rank asks; ValueError says what cannot be."""
        reader = Reader(message)
        digest, count = reader.take(torch.int64, 2).tolist()
        if digest != self.digest:
            raise ValueError("the question is about other negatives, or drawn with another key")
        sources = reader.take(narrowest(span[1] - span[0]), count)
        check_below(sources, span[1] - span[0], "source")
        positions = reader.take(torch.int64, count)
        until = reader.take(torch.int64, count) if self.has_until else None
        reader.check_done()
        return Positives(sources.long() + span[0], positions, until, self.time_column)

    def size(self, links: int) -> int:
        """The bytes of an answer about so many links."""
        return 8 + filled(links * self.per_positive * narrowest(self.candidates).itemsize)

    def answer(self, drawn: Tensor | NothingLeft, links: int) -> Tensor:
        """uint8: what was drawn, or the link for which nothing may be."""
        if isinstance(drawn, NothingLeft):
            culprit, drawn = drawn.link, torch.zeros(links, self.per_positive, dtype=torch.int64)
        else:
            culprit = -1
        return as_bytes([torch.tensor([culprit]), drawn.flatten().to(narrowest(self.candidates))])

    def drawn(self, message: Tensor, links: int) -> Tensor | NothingLeft:
        """int64 (links, per_positive), or the link without any; ValueError says what cannot be."""
        reader = Reader(message)
        culprit = int(reader.take(torch.int64, 1))
        if not -1 <= culprit < links:
            raise ValueError(f"nothing is left for link {culprit} of {links}")
        found = reader.take(narrowest(self.candidates), links * self.per_positive)
        check_below(found, self.candidates, "destination")
        reader.check_done()
        return NothingLeft(culprit) if culprit >= 0 else found.long().view(links, self.per_positive)
