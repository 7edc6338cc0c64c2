"""Link-prediction model: an encoder computes node rows, a decoder per edge type scores pairs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from khop.batch import Batch, LinkRows
from khop.models.decoders import Decoder, DecoderKind, decoder_of
from khop.models.names import parameter_name
from khop.schema import EdgeType, EdgeTypeName, by_edge_type, edge_type_of

DecodersByType = Mapping[EdgeType, nn.Module] | Mapping[str, nn.Module]


@dataclass(frozen=True)
class LinkScores:
    """Scores of a batch's links of one edge type, in the layout of its LinkRows."""

    pairs: Tensor  # (pairs)
    negatives: Tensor | None = None  # (links, k), of triplets


class LinkPredictor(nn.Module):
    """Scores the links of a LinkSampler's batch; higher is more likely an edge.

    The encoder is any module that returns a batch's rows by node type, one per seed, such as
    `khop.models.SAGE.for_graph(graph, target=["user", "item"], outputs=64)`. Each edge type has a separate
    decoder.
    """

    def __init__(self, encoder: nn.Module, decoders: DecodersByType) -> None:
        super().__init__()
        decoders = by_edge_type(decoders)
        if not decoders:
            raise ValueError("link predictor: no decoders, give one per edge type whose links are scored")
        self.encoder = encoder
        self.edge_types = tuple(decoders)
        self.decoders = nn.ModuleDict({parameter_name(*t): decoder for t, decoder in decoders.items()})

    @classmethod
    def of(
        cls, encoder: nn.Module, edge_types: Iterable[EdgeTypeName], decoder: DecoderKind, width: int
    ) -> LinkPredictor:
        """Make a predictor with one new decoder per edge type, for rows of `width` numbers."""
        return cls(encoder, {edge_type_of(t): decoder_of(decoder, width) for t in edge_types})

    def decoder(self, edge_type: EdgeTypeName) -> Decoder:
        """Return the decoder of an edge type."""
        edge_type = edge_type_of(edge_type)
        name = parameter_name(*edge_type)
        if name not in self.decoders:
            raise ValueError(f"links of {edge_type}: the model scores those of {list(self.edge_types)}")
        found: Decoder = self.decoders[name]  # type: ignore[assignment]
        return found

    def forward(self, batch: Batch) -> dict[EdgeType, LinkScores]:
        """Return the scores of the batch's links, by edge type."""
        if not batch.links:
            raise ValueError("the batch has no links: give the loader a khop.LinkSampler and links as seeds")
        rows: Mapping[str, Tensor] = self.encoder(batch)
        return {edge_type: self._scores(edge_type, links, rows) for edge_type, links in batch.links.items()}

    def _scores(self, edge_type: EdgeType, links: LinkRows, rows: Mapping[str, Tensor]) -> LinkScores:
        decoder = self.decoder(edge_type)
        source = rows[edge_type[0]].index_select(0, links.source)
        destinations = rows[edge_type[2]]
        pairs = decoder(source, destinations.index_select(0, links.destination))
        if links.negatives is None:
            return LinkScores(pairs)
        # index_select: its backward adds in a fixed order if a row is in several pairs.
        others = destinations.index_select(0, links.negatives.flatten())
        shape = (*links.negatives.shape, destinations.shape[1])
        return LinkScores(pairs, decoder(source.unsqueeze(1), others.view(shape)))
