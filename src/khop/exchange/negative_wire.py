"""Wire format of exact negatives between ranks: sources as requests, drawn destinations as answers."""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

import torch
from torch import Tensor

from khop.draw import DrawKey, DrawnNegatives, Positives, mix64
from khop.exchange.pieces import Reader, as_bytes, check_below, filled, narrowest
from khop.graph.negatives import NothingLeft
from khop.schema import EdgeType

Span = tuple[int, int]  # first id on a rank, and the id after its last


@dataclass(frozen=True)
class NegativeWire:
    """Format of the messages of one draw, the same on all ranks."""

    per_positive: int
    candidates: int  # number of nodes of the destination type
    has_until: bool
    time_column: str | None
    digest: int  # hash of everything that ranks have to agree on

    @classmethod
    def of(
        cls,
        edge_type: EdgeType,
        negatives: DrawnNegatives,
        positives: Positives,
        key: DrawKey,
        candidates: int,
    ) -> NegativeWire:
        """Return the format of a draw among `candidates` nodes."""
        has_until = positives.until is not None
        words = repr((edge_type, negatives, has_until, positives.time_column))
        digest = mix64(key.value ^ crc32(words.encode())) >> 1
        return cls(negatives.per_positive, candidates, has_until, positives.time_column, digest)

    def question(self, positives: Positives, span: Span) -> Tensor:
        """Encode links for the rank that stores their sources. Returns uint8 (n)."""
        sources = (positives.sources - span[0]).to(narrowest(span[1] - span[0]))
        pieces = [torch.tensor([self.digest, sources.numel()]), sources, positives.positions]
        return as_bytes(pieces if positives.until is None else [*pieces, positives.until])

    def positives(self, message: Tensor, span: Span) -> Positives:
        """Decode the links of another rank's request; ValueError names the part of it that is invalid."""
        reader = Reader(message)
        digest, count = reader.take(torch.int64, 2).tolist()
        if digest != self.digest:
            raise ValueError("the request is for other negatives, or for another key")
        sources = reader.take(narrowest(span[1] - span[0]), count)
        check_below(sources, span[1] - span[0], "source")
        positions = reader.take(torch.int64, count)
        until = reader.take(torch.int64, count) if self.has_until else None
        reader.check_done()
        return Positives(sources.long() + span[0], positions, until, self.time_column)

    def size(self, links: int) -> int:
        """Return the bytes of an answer for this number of links."""
        return 8 + filled(links * self.per_positive * narrowest(self.candidates).itemsize)

    def answer(self, drawn: Tensor | NothingLeft, links: int) -> Tensor:
        """Encode the drawn negatives, or the link that has no candidate left. Returns uint8 (n)."""
        if isinstance(drawn, NothingLeft):
            culprit, drawn = drawn.link, torch.zeros(links, self.per_positive, dtype=torch.int64)
        else:
            culprit = -1
        return as_bytes([torch.tensor([culprit]), drawn.flatten().to(narrowest(self.candidates))])

    def drawn(self, message: Tensor, links: int) -> Tensor | NothingLeft:
        """Decode an answer: int64 (links, per_positive), or the link that has no candidate left.

        ValueError names the part of the message that is invalid.
        """
        reader = Reader(message)
        culprit = int(reader.take(torch.int64, 1))
        if not -1 <= culprit < links:
            raise ValueError(f"nothing is left for link {culprit} of {links}")
        found = reader.take(narrowest(self.candidates), links * self.per_positive)
        check_below(found, self.candidates, "destination")
        reader.check_done()
        return NothingLeft(culprit) if culprit >= 0 else found.long().view(links, self.per_positive)
