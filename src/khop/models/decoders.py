"""Decoders: scores of links from the rows of their ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from khop.arguments import check_word
from khop.models.candidate_search import CandidateSearch
from khop.models.relation_decoders import ComplEx, DistMult, RelationDecoder, RotatE, TransE

DecoderKind = Literal["dot", "mlp", "distmult", "transe", "complex", "rotate"]
_GRID_BYTES = 1 << 26  # memory limit of a grid's hidden values


class Decoder(Protocol):
    """Scores pairs of rows; higher is more likely a link. Leading dimensions are broadcast."""

    def __call__(self, source: Tensor, destination: Tensor, /) -> Tensor:
        """Return (...): a score per pair, from (..., width) of its source and of its destination.

        Decoders of relations also take the relation of each pair, int64 (...).
        """
        ...

    def grid(self, sources: Tensor, destinations: Tensor) -> Tensor:
        """Return (sources, destinations): the score of each source with each destination."""
        ...


class Dot(nn.Module):
    """Inner product of both rows."""

    def forward(self, source: Tensor, destination: Tensor) -> Tensor:
        """Return (...): a score per pair."""
        return (source * destination).sum(-1)

    def grid(self, sources: Tensor, destinations: Tensor) -> Tensor:
        """Return (sources, destinations), computed by one matrix product."""
        return sources @ destinations.T

    def search(self, sources: Tensor, destinations: Tensor) -> CandidateSearch:
        """Return the rows, of which the inner product is the score."""
        return CandidateSearch(sources, destinations)


class MLP(nn.Module):
    """A layer of `hidden` ReLU units over both rows, concatenated, and a linear layer on top.

    Source and destination are not exchangeable, so it fits links with a direction.
    """

    def __init__(self, width: int, hidden: int | None = None) -> None:
        super().__init__()
        hidden = width if hidden is None else hidden
        _check_width("MLP", width, hidden)
        # A linear layer over [source, destination] is a sum of two halves. Each half is computed once per
        # row, even if the row is in many pairs.
        both = nn.Linear(2 * width, hidden)
        self.source = nn.Parameter(both.weight[:, :width].detach().clone())
        self.destination = nn.Parameter(both.weight[:, width:].detach().clone())
        self.bias = nn.Parameter(both.bias.detach().clone())
        self.out = nn.Linear(hidden, 1)

    def forward(self, source: Tensor, destination: Tensor) -> Tensor:
        """Return (...): a score per pair."""
        return self._scores(source @ self.source.T + self.bias, destination @ self.destination.T)

    def grid(self, sources: Tensor, destinations: Tensor) -> Tensor:
        """Return (sources, destinations), computed in chunks of sources to bound the memory."""
        begun, ended = sources @ self.source.T + self.bias, destinations @ self.destination.T
        row_bytes = max(1, ended.nbytes)
        chunks = torch.split(begun.unsqueeze(1), max(1, _GRID_BYTES // row_bytes))
        return torch.cat([self._scores(chunk, ended) for chunk in chunks])

    def _scores(self, source: Tensor, destination: Tensor) -> Tensor:
        scores: Tensor = self.out((source + destination).relu_()).squeeze(-1)
        return scores


RELATION_DECODERS: Mapping[DecoderKind, type[RelationDecoder]] = {
    "distmult": DistMult,
    "transe": TransE,
    "complex": ComplEx,
    "rotate": RotatE,
}


def decoder_of(kind: DecoderKind, width: int, relations: int = 1) -> nn.Module:
    """Make a decoder for rows of `width` numbers; Dot and MLP have no relations."""
    check_word("decoder", kind, DecoderKind)
    _check_width(repr(kind), width)
    if kind in RELATION_DECODERS:
        return RELATION_DECODERS[kind](width, relations)
    if relations > 1:
        raise ValueError(
            f"decoder {kind!r}: has no relations, and the links have {relations}; use one of "
            f"{list(RELATION_DECODERS)}"
        )
    return Dot() if kind == "dot" else MLP(width)


def _check_width(decoder: str, *widths: int) -> None:
    for width in widths:
        if width < 1:
            raise ValueError(f"decoder {decoder}: width {width} must be at least 1")
