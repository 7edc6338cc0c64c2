"""Link-prediction model: an encoder computes node rows, decoders score pairs by edge type or relation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor, nn

from khop.arguments import whole_number
from khop.batch import Batch
from khop.models.decoders import RELATION_DECODERS, Decoder, DecoderKind, decoder_of
from khop.models.link_scores import LinkScores
from khop.models.names import RowNames, parameter_name
from khop.models.relation_decoders import RelationDecoder
from khop.models.relation_rows import RelationRows, RowsOfType, joined_scores, scored
from khop.rules.rule import Rule
from khop.rules.uniform import Uniform
from khop.schema import EdgeType, EdgeTypeName, by_edge_type, edge_type_of

DecodersByType = Mapping[EdgeType, nn.Module] | Mapping[str, nn.Module]
NO_RELATIONS: Mapping[EdgeTypeName, int] = MappingProxyType({})


@dataclass(frozen=True)
class SharedDecoder:
    """One decoder with a table of relations for the links of several edge types, or of several relations.

    `relations` maps each edge type to its number of relations: 1, or that of the links' relation column.
    """

    decoder: RelationDecoder
    relations: Mapping[EdgeType, int]

    def __post_init__(self) -> None:
        counts = {t: whole_number(f"relations of {t}", n, 1) for t, n in self.relations.items()}
        if sum(counts.values()) != self.decoder.relations:
            raise ValueError(
                f"relations of {list(counts)}: {sum(counts.values())} in all, the decoder's table has "
                f"{self.decoder.relations}; make the decoder with as many"
            )


class LinkPredictor(nn.Module):
    """Scores the links of a LinkSampler's batch; higher is more likely an edge.

    The encoder is any module that returns a batch's rows by node type, one per seed, such as
    `khop.models.SAGE.for_graph(graph, target=["user", "item"], outputs=64)`. Each edge type has a separate
    decoder; or all share one `SharedDecoder`, whose table has a row for each edge type, or for each value of
    the links' relations. A shared decoder scores the links of all types at once.
    """

    def __init__(self, encoder: nn.Module, decoders: DecodersByType | SharedDecoder) -> None:
        super().__init__()
        self.encoder = encoder
        self._rows: RelationRows | None = None
        if isinstance(decoders, SharedDecoder):
            self.decoders = nn.ModuleDict({"relations": decoders.decoder})
            self._rows = RelationRows.of(decoders.relations)
            self.edge_types = tuple(decoders.relations)
            self.row_names = RowNames(self, "decoders.relations.relation", decoders.relations)
            return
        by_type = by_edge_type(decoders)
        if not by_type:
            raise ValueError("link predictor: no decoders, give one per edge type whose links are scored")
        self.edge_types = tuple(by_type)
        self.decoders = nn.ModuleDict({parameter_name(*t): decoder for t, decoder in by_type.items()})

    @property
    def rule(self) -> Rule:
        """Rule by which a sampler draws neighbors for the encoder, unless another one is chosen."""
        return getattr(self.encoder, "rule", Uniform())

    @classmethod
    def of(
        cls,
        encoder: nn.Module,
        edge_types: Iterable[EdgeTypeName],
        decoder: DecoderKind,
        width: int,
        relations: Mapping[EdgeTypeName, int] = NO_RELATIONS,
    ) -> LinkPredictor:
        """Make a predictor with new decoders for rows of `width` numbers.

        `relations` is the number of relations of the edge types with a relation column. Decoders with a table
        of relations share one table, with a row for each relation and each edge type without relations.
        """
        types = [edge_type_of(t) for t in edge_types]
        counts = {edge_type_of(t): n for t, n in relations.items()}
        unknown = [t for t in counts if t not in types]
        if unknown:
            raise ValueError(f"relations of {unknown}: the model scores links of {types}")
        rows = {t: counts.get(t, 1) for t in types}
        if decoder in RELATION_DECODERS and (len(types) > 1 or counts):
            made = decoder_of(decoder, width, sum(rows.values()))
            assert isinstance(made, RelationDecoder)
            return cls(encoder, SharedDecoder(made, rows))
        return cls(encoder, {t: decoder_of(decoder, width, n) for t, n in rows.items()})

    def decoder(self, edge_type: EdgeTypeName) -> Decoder:
        """Return the decoder of an edge type; of a shared one, the rows of the type."""
        edge_type = edge_type_of(edge_type)
        name = parameter_name(*edge_type)
        if edge_type not in self.edge_types:
            raise ValueError(f"links of {edge_type}: the model scores those of {list(self.edge_types)}")
        if self._rows is not None:
            shared = self.decoders["relations"]
            assert isinstance(shared, RelationDecoder)
            return RowsOfType(shared, self._rows.first[edge_type], self._rows.counts[edge_type])
        found: Decoder = self.decoders[name]  # type: ignore[assignment]
        return found

    def forward(self, batch: Batch) -> Mapping[EdgeType, LinkScores]:
        """Return the scores of the batch's links, by edge type."""
        if not batch.links:
            raise ValueError("the batch has no links: give the loader a khop.LinkSampler and links as seeds")
        for edge_type in batch.links:
            self.decoder(edge_type)
        rows: Mapping[str, Tensor] = self.encoder(batch)
        if self._rows is not None:
            shared = self.decoders["relations"]
            assert isinstance(shared, RelationDecoder)
            return joined_scores(shared, self._rows, batch.links, rows)
        return {edge_type: self._scores(edge_type, batch, rows) for edge_type in batch.links}

    def _scores(self, edge_type: EdgeType, batch: Batch, rows: Mapping[str, Tensor]) -> LinkScores:
        decoder, links = self.decoder(edge_type), batch.links[edge_type]
        sources, destinations = rows[edge_type[0]], rows[edge_type[2]]
        # index_select: its backward adds in a fixed order if a row is in several pairs.
        source = sources.index_select(0, links.source)
        destination = destinations.index_select(0, links.destination)
        by, found = links.relations, []
        pairs = scored(decoder, source, destination, by)
        by = None if by is None else by.unsqueeze(1)
        if links.negatives is not None:
            others = destinations.index_select(0, links.negatives.flatten())
            others = others.view(*links.negatives.shape, destinations.shape[1])
            found.append(scored(decoder, source.unsqueeze(1), others, by))
        if links.source_negatives is not None:
            others = sources.index_select(0, links.source_negatives.flatten())
            others = others.view(*links.source_negatives.shape, sources.shape[1])
            found.append(scored(decoder, others, destination.unsqueeze(1), by))
        return LinkScores(pairs, torch.cat(found, dim=1) if found else None)
