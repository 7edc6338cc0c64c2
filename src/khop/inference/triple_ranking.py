"""Filtered ranking of triples: both ends of each triple are ranked among all nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from khop.arguments import shown
from khop.inference.full_ranking import FullRanking, full_ranking
from khop.models.relation_decoders import RelationDecoder
from khop.models.relation_rows import RowsOfType


@dataclass(frozen=True)
class TripleRanking:
    """Ranking of the destinations of triples, of their sources, and the mean over both ends."""

    destinations: FullRanking
    sources: FullRanking

    @property
    def mrr(self) -> float:
        """Mean reciprocal rank over both ends."""
        return (self.destinations.mrr + self.sources.mrr) / 2

    @property
    def hits(self) -> dict[int, float]:
        """Fraction of ends among the first k, by k."""
        return {k: (hits + self.sources.hits[k]) / 2 for k, hits in self.destinations.hits.items()}


def triple_ranking(
    decoder: object,
    sources: Tensor,
    destinations: Tensor,
    triples: Tensor,
    known: Tensor | None = None,
    at: Sequence[int] = (1, 3, 10),
) -> TripleRanking:
    """Rank both ends of triples among all nodes of their types, by a decoder of relations.

    `sources` and `destinations` are the rows of all nodes at both ends, (nodes, width). `triples` are int64
    (3, n): source, relation, destination. `known` are further triples, (3, m), which do not count against a
    triple of the same relation and other end: give training, validation and test triples for the filtered
    setting (Bordes et al. 2013); None: the raw one. Collective, as `khop.full_ranking`.
    """
    if not isinstance(decoder, RelationDecoder | RowsOfType):
        raise ValueError(f"decoder {shown(decoder)}: give a decoder of relations, as khop.models.TransE")
    for name, given in (("triples", triples), ("known", known)):
        if given is not None and (given.dim() != 2 or given.shape[0] != 3 or given.dtype != torch.int64):
            raise ValueError(
                f"{name} {given.dtype} {tuple(given.shape)}: give int64 (3, n): source, relation, destination"
            )
    count, move = decoder.relations, sources.device
    every = triples if known is None else torch.cat([triples, known], dim=1)
    if every.numel() and not 0 <= int(every[1].min()) <= int(every[1].max()) < count:
        raise ValueError(
            f"triples: relations from {int(every[1].min())} to {int(every[1].max())}, the decoder has {count}"
        )

    def asked(given: Tensor, end: int) -> Tensor:
        """Return queries, a node and a relation as one number, over the candidates: (2, n)."""
        return torch.stack([given[end] * count + given[1], given[2 - end]])

    def of_destinations(queries: Tensor) -> Tensor:
        nodes, relations = (queries // count).to(move), (queries % count).to(move)
        return decoder.grid(sources[nodes], destinations, relations)

    def of_sources(queries: Tensor) -> Tensor:
        nodes, relations = (queries // count).to(move), (queries % count).to(move)
        return decoder.source_grid(sources, destinations[nodes], relations)

    nothing = torch.empty(2, 0, dtype=torch.int64)
    rankings = [
        full_ranking(
            scores_of,
            asked(triples, end),
            nothing,
            candidates.shape[0],
            at,
            known=None if known is None else asked(known, end),
        )
        for scores_of, end, candidates in ((of_destinations, 0, destinations), (of_sources, 2, sources))
    ]
    return TripleRanking(*rankings)
