"""Scores of links of many edge types or relations by one decoder: all ends are gathered once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from khop.batch import LinkRows
from khop.models.candidate_search import CandidateSearch
from khop.models.decoders import Decoder
from khop.models.link_scores import LinkScores, ScoresByType
from khop.models.relation_decoders import RelationDecoder
from khop.schema import EdgeType, NodeType


@dataclass(frozen=True)
class RelationRows:
    """The rows of a decoder's table by edge type: consecutive rows, one per relation of the type."""

    counts: Mapping[EdgeType, int]
    first: Mapping[EdgeType, int]

    @classmethod
    def of(cls, counts: Mapping[EdgeType, int]) -> RelationRows:
        """Return rows in the order of the edge types."""
        firsts = accumulate(counts.values(), initial=0)
        return cls(dict(counts), dict(zip(counts, firsts, strict=False)))

    def row(self, edge_type: EdgeType, relations: Tensor | None) -> Tensor | None:
        """Return the row of each pair of a type, int64 (pairs); None: the type's first row.

        ValueError if relations are missing, or where they are not below the type's number of relations.
        """
        count, first = self.counts[edge_type], self.first[edge_type]
        if relations is None:
            if count > 1:
                raise ValueError(
                    f"links of {edge_type} have no relations, the model has {count}: give "
                    "khop.Links(relations=...)"
                )
            return None
        if relations.device.type == "cpu" and relations.numel() and int(relations.max()) >= count:
            raise ValueError(
                f"links of {edge_type}: relation {int(relations.max())}, the model has {count}; make it with "
                "more"
            )
        return relations + first if first else relations


@dataclass(frozen=True)
class RowsOfType:
    """The decoder of one edge type: some rows of a shared table (a Decoder)."""

    shared: RelationDecoder
    first: int
    relations: int

    def __call__(self, source: Tensor, destination: Tensor, relation: Tensor | None = None) -> Tensor:
        """Return (...): a score per pair; `relation` is int64 (...), counted from the type's first row."""
        return self.shared(source, destination, self._row(relation, source))  # type: ignore[no-any-return]

    def grid(self, sources: Tensor, destinations: Tensor, relation: Tensor | None = None) -> Tensor:
        """Return (sources, destinations): the score of each source with each destination."""
        return self.shared.grid(sources, destinations, self._row(relation, sources))

    def source_grid(self, sources: Tensor, destinations: Tensor, relation: Tensor | None = None) -> Tensor:
        """Return (destinations, sources): the score of each destination with each source."""
        return self.shared.source_grid(sources, destinations, self._row(relation, destinations))

    def search(
        self, sources: Tensor, destinations: Tensor, relation: Tensor | None = None
    ) -> CandidateSearch:
        """Return the queries of the sources and the rows of the destinations."""
        return self.shared.search(sources, destinations, self._row(relation, sources))

    def _row(self, relation: Tensor | None, rows: Tensor) -> Tensor:
        if relation is not None:
            return relation + self.first
        if self.relations > 1:
            raise ValueError(f"the decoder has {self.relations} relations: give the relation of each pair")
        return torch.full(rows.shape[:-1], self.first, device=rows.device)


def scored(decoder: Decoder, source: Tensor, destination: Tensor, relation: Tensor | None) -> Tensor:
    """Return (...): a score per pair, by relation if the decoder has several."""
    if relation is not None and isinstance(decoder, RelationDecoder | RowsOfType) and decoder.relations > 1:
        of_relation: Tensor = decoder(source, destination, relation)
        return of_relation
    return decoder(source, destination)


def joined_scores(
    decoder: RelationDecoder,
    table: RelationRows,
    links: Mapping[EdgeType, LinkRows],
    rows: Mapping[NodeType, Tensor],
) -> ScoresByType:
    """Score the links of all edge types; `rows` are the rows of the seeds by node type."""
    ends, first = _one_tensor(links, rows)
    of_types = list(links.items())
    source = ends.index_select(0, _joined([of.source + first[t[0]] for t, of in of_types]))
    destination = ends.index_select(0, _joined([of.destination + first[t[2]] for t, of in of_types]))
    counts = {t: of.source.numel() for t, of in of_types}
    relation = _relations(table, links)
    pairs, found = decoder(source, destination, relation), []
    several = [[of.negatives for _, of in of_types], [of.source_negatives for _, of in of_types]]
    for number, of_end in enumerate(several):
        given_types = zip(of_end, links, strict=True)
        ids = [each + first[t[2 - 2 * number]] for each, t in given_types if each is not None]
        if not ids:
            continue
        given = _joined(ids)
        others = ends.index_select(0, given.flatten()).view(*given.shape, ends.shape[1])
        own, by = (destination if number else source).unsqueeze(1), relation.unsqueeze(1)
        found.append(decoder(others, own, by) if number else decoder(own, others, by))
    return ScoresByType(LinkScores(pairs, torch.cat(found, dim=1) if found else None), counts)


def _relations(table: RelationRows, links: Mapping[EdgeType, LinkRows]) -> Tensor:
    """Return the table's row of each pair, int64 (pairs)."""
    of_types = {t: table.row(t, of.relations) for t, of in links.items()}
    return _joined(
        [
            torch.full_like(links[t].source, table.first[t]) if each is None else each
            for t, each in of_types.items()
        ]
    )


def _one_tensor(
    links: Mapping[EdgeType, LinkRows], rows: Mapping[NodeType, Tensor]
) -> tuple[Tensor, dict[NodeType, int]]:
    """Return the rows of all node types at the ends of links, and the first row of each type."""
    types = list(dict.fromkeys(end for t in links for end in (t[0], t[2])))
    firsts = accumulate((rows[t].shape[0] for t in types), initial=0)
    return _joined([rows[t] for t in types]), dict(zip(types, firsts, strict=False))


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))
