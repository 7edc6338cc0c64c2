"""Models of links and edges: an encoder computes node rows, and decoders or heads compute outputs of pairs.

A shared decoder scores the links of all edge types at once, with one gather of the rows of their ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from types import MappingProxyType

import torch
from torch import Tensor, nn

from khop.arguments import whole_number
from khop.batch import Batch, LinkRows
from khop.graph.rule import Rule
from khop.models.decoders import (
    RELATION_DECODERS,
    CandidateSearch,
    Decoder,
    DecoderKind,
    RelationDecoder,
    decoder_of,
)
from khop.models.layer import RowNames, parameter_name
from khop.models.stack import OutputUnit
from khop.sampling.rules.uniform import UNIFORM
from khop.schema import EdgeType, EdgeTypeName, NodeType, by_edge_type, edge_type_of

HeadsByType = Mapping[EdgeType, nn.Module] | Mapping[str, nn.Module]


class EdgeHead(nn.Module):
    """Multilayer perceptron over the concatenated rows of an edge's source and destination.

    It has one hidden layer of ReLU units. The outputs depend on the direction of an edge.

    Args:
        width: Width of the rows of nodes.
        outputs: Outputs per edge: the number of classes, or of labels.
        hidden: Number of hidden units; default: `width`.
    Raises:
        ValueError: A number is below 1.
    Example:
        >>> head = khop.models.EdgeHead(width=8, outputs=3)
        >>> head(torch.randn(4, 8), torch.randn(4, 8)).shape
        torch.Size([4, 3])
    """

    def __init__(self, width: int, outputs: int, hidden: int | None = None) -> None:
        super().__init__()
        width, outputs = whole_number("width", width, 1), whole_number("outputs", outputs, 1)
        hidden = width if hidden is None else whole_number("hidden", hidden, 1)
        self.hidden = nn.Linear(2 * width, hidden)
        self.out = nn.Linear(hidden, outputs)
        self.unit: nn.Module | None = None

    def rescale(self, mean: Sequence[float], deviation: Sequence[float]) -> None:
        """Scale the outputs to the unit of the labels: times `deviation`, plus `mean`.

        Args:
            mean: Mean of the labels, one per output. Stored with the model's weights.
            deviation: Standard deviation of the labels, one per output.
        """
        self.unit = OutputUnit(mean, deviation)

    def forward(self, source: Tensor, destination: Tensor) -> Tensor:
        """Compute the outputs of edges.

        Args:
            source: Rows of the sources, (edges, width).
            destination: Rows of the destinations, (edges, width).
        Returns:
            Outputs, (edges, outputs).
        """
        out: Tensor = self.out(self.hidden(torch.cat([source, destination], -1)).relu())
        return out if self.unit is None else self.unit(out)


class EdgePredictor(nn.Module):
    """Model of edges: an encoder computes node rows, and a head per edge type computes outputs of edges.

    It is for batches of a `khop.LinkSampler`, and for `khop.EdgeClassification` and `khop.EdgeRegression`.

    Args:
        encoder: Module that returns a batch's rows by node type, one per seed, such as
            `khop.models.SAGE.for_graph(graph, target=["user", "item"], outputs=64)`; for links within one
            node type also the rows alone.
        heads: Module over the rows of both ends by edge type, such as a `khop.models.EdgeHead`.
    Raises:
        ValueError: `heads` is empty.
    Example:
        >>> graph = khop.open_graph("debian")
        >>> encoder = khop.models.SAGE.for_graph(graph, hidden=32, target=["package"], outputs=16)
        >>> heads = {"package linked package": khop.models.EdgeHead(width=16, outputs=3)}
        >>> model = khop.models.EdgePredictor(encoder, heads)
    """

    def __init__(self, encoder: nn.Module, heads: HeadsByType) -> None:
        super().__init__()
        heads = by_edge_type(heads)
        if not heads:
            raise ValueError("edge predictor: no heads, give one per edge type whose edges are predicted")
        self.encoder = encoder
        self.edge_types = tuple(heads)
        self.heads = nn.ModuleDict({parameter_name(*t): head for t, head in heads.items()})

    @property
    def rule(self) -> Rule:
        """Default sampling rule for the encoder."""
        return getattr(self.encoder, "rule", UNIFORM)

    @classmethod
    def of(
        cls, encoder: nn.Module, edge_types: Iterable[EdgeTypeName], width: int, outputs: int
    ) -> EdgePredictor:
        """Make a model with a new `khop.models.EdgeHead` for each edge type.

        Args:
            encoder: Module that returns a batch's rows by node type, one per seed.
            edge_types: Edge types whose edges are predicted.
            width: Width of the encoder's rows.
            outputs: Outputs per edge.
        Returns:
            The model.
        """
        return cls(encoder, {edge_type_of(t): EdgeHead(width, outputs) for t in edge_types})

    def head(self, edge_type: EdgeTypeName) -> nn.Module:
        """Return the head of an edge type; ValueError if there is none."""
        edge_type = edge_type_of(edge_type)
        name = parameter_name(*edge_type)
        if name not in self.heads:
            raise ValueError(f"edges of {edge_type}: the model predicts those of {list(self.edge_types)}")
        return self.heads[name]

    def forward(self, batch: Batch) -> dict[EdgeType, Tensor]:
        """Compute the outputs of a batch's links.

        Args:
            batch: Batch of a `khop.LinkSampler`.
        Returns:
            Outputs (links, outputs) by edge type.
        """
        if not batch.links:
            raise ValueError("the batch has no links: give the loader a khop.LinkSampler and links as seeds")
        rows = _rows_of_ends(self.encoder, batch)
        # index_select: its backward adds in a fixed order if a row is in several pairs.
        return {
            edge_type: self.head(edge_type)(
                rows[edge_type[0]].index_select(0, links.source),
                rows[edge_type[2]].index_select(0, links.destination),
            )
            for edge_type, links in batch.links.items()
        }


def _rows_of_ends(encoder: nn.Module, batch: Batch) -> Mapping[NodeType, Tensor]:
    """Return the encoder's rows of the seeds by node type, or a tensor for a single type.

    ValueError if the rows of a type at the ends of links are missing, or are not one per seed.
    """
    rows = encoder(batch)
    types = list(dict.fromkeys(end for edge_type in batch.links for end in (edge_type[0], edge_type[2])))
    if isinstance(rows, Tensor) and len(types) == 1:
        rows = {types[0]: rows}
    there = list(rows) if isinstance(rows, Mapping) else f"a {type(rows).__name__}"
    if not isinstance(rows, Mapping) or not set(types) <= set(rows):
        raise ValueError(
            f"the encoder returns {there}, but the links have the node types {types}: give an encoder of "
            f"these targets, such as khop.models.SAGE.for_graph(graph, target={types}, outputs=64)"
        )
    for node_type in types:
        seeds, found = batch.sample.seed_index[node_type].numel(), rows[node_type].shape[0]
        if found != seeds:
            raise ValueError(
                f"the encoder returns {found:,} rows of {node_type!r}, but the batch has {seeds:,} seeds: "
                "return one row per seed, as h[batch.seed_index]"
            )
    return rows


@dataclass(frozen=True)
class LinkScores:
    """Scores of a batch's links of one edge type, in the layout of its LinkRows."""

    pairs: Tensor  # (pairs)
    negatives: Tensor | None = None  # (links, k), for triplets: negative destinations, then sources

    def in_float32(self) -> LinkScores:
        """Return scores of at least float32; autocast computes some in bfloat16 or float16."""
        wide = torch.promote_types(self.pairs.dtype, torch.float32)
        return LinkScores(self.pairs.to(wide), None if self.negatives is None else self.negatives.to(wide))


@dataclass(frozen=True, eq=False)
class ScoresByType(Mapping[EdgeType, LinkScores]):
    """Scores of the links of all edge types in one tensor, in the order of the types."""

    joined: LinkScores
    counts: Mapping[EdgeType, int]  # pairs of each edge type

    def __getitem__(self, edge_type: EdgeType) -> LinkScores:
        """Return the scores of an edge type."""
        return self._by_type[edge_type]

    def __iter__(self) -> Iterator[EdgeType]:
        """Iterate over the edge types."""
        return iter(self.counts)

    def __len__(self) -> int:
        """Return the number of edge types."""
        return len(self.counts)

    @cached_property
    def _by_type(self) -> dict[EdgeType, LinkScores]:
        sizes = list(self.counts.values())
        pairs, negatives = self.joined.pairs.split(sizes), self.joined.negatives
        of_types = [None] * len(sizes) if negatives is None else negatives.split(sizes)
        return {t: LinkScores(*each) for t, *each in zip(self.counts, pairs, of_types, strict=True)}


def joined(scores: Mapping[EdgeType, LinkScores]) -> LinkScores | None:
    """Concatenate the scores of all edge types; None if their links have different numbers of negatives."""
    if isinstance(scores, ScoresByType):
        return scores.joined
    of_types = list(scores.values())
    widths = {None if each.negatives is None else each.negatives.shape[1] for each in of_types}
    if len(widths) != 1:
        return None
    pairs = torch.cat([each.pairs for each in of_types])
    negatives = [each.negatives for each in of_types if each.negatives is not None]
    return LinkScores(pairs, torch.cat(negatives) if negatives else None)


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

        Raises ValueError if relations are missing, or not below the type's number of relations.
        """
        count, first = self.counts[edge_type], self.first[edge_type]
        if relations is None:
            if count > 1:
                raise ValueError(
                    f"links of {edge_type} have no relations, but the model has {count}: give "
                    "khop.Links(relations=...)"
                )
            return None
        if relations.device.type == "cpu" and relations.numel() and int(relations.max()) >= count:
            raise ValueError(
                f"links of {edge_type}: relation {int(relations.max())}, but the model has {count}; make it "
                "with more relations"
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
    """Return the row in the table for each pair, int64 (pairs)."""
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
    """Concatenate the rows of all node types at the ends of links; also return each type's first row."""
    types = list(dict.fromkeys(end for t in links for end in (t[0], t[2])))
    firsts = accumulate((rows[t].shape[0] for t in types), initial=0)
    return _joined([rows[t] for t in types]), dict(zip(types, firsts, strict=False))


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))


DecodersByType = Mapping[EdgeType, nn.Module] | Mapping[str, nn.Module]
NO_RELATIONS: Mapping[EdgeTypeName, int] = MappingProxyType({})


@dataclass(frozen=True)
class SharedDecoder:
    """Decoder with relations, shared by several edge types.

    Args:
        decoder: Decoder with a table of relations, such as `khop.models.DistMult`. Its rows are the relations
            of the first edge type, then those of the second, and so on.
        relations: Number of relations by edge type: 1, or that of the links' relation column.
    Raises:
        ValueError: The number of relations of the decoder is not the sum over the edge types.
    Example:
        >>> relations = {("user", "buys", "item"): 1, ("user", "rates", "item"): 5}
        >>> shared = khop.models.SharedDecoder(khop.models.DistMult(width=8, relations=6), relations)
    """

    decoder: RelationDecoder
    relations: Mapping[EdgeType, int]

    def __post_init__(self) -> None:
        counts = {t: whole_number(f"relations of {t}", n, 1) for t, n in self.relations.items()}
        if sum(counts.values()) != self.decoder.relations:
            raise ValueError(
                f"relations of {list(counts)}: {sum(counts.values())} in total, but the decoder's table has "
                f"{self.decoder.relations}; make the decoder with {sum(counts.values())}"
            )


class LinkPredictor(nn.Module):
    """Link-prediction model: an encoder computes node rows, and decoders score pairs of rows.

    It is for batches of a `khop.LinkSampler`, and for `khop.LinkPrediction`. A higher score means that a link
    is more likely.

    Args:
        encoder: Module that returns a batch's rows by node type, one per seed, such as
            `khop.models.SAGE.for_graph(graph, target=["user", "item"], outputs=64)`; for links within one
            node type also the rows alone.
        decoders: Decoder by edge type, or a `khop.models.SharedDecoder`, which scores the links of all edge
            types at once.
    Raises:
        ValueError: `decoders` is empty.
    Example:
        >>> graph = khop.open_graph("debian")
        >>> encoder = khop.models.SAGE.for_graph(graph, hidden=32, target=["package"], outputs=16)
        >>> model = khop.models.LinkPredictor(encoder, {"package linked package": khop.models.Dot()})
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
        """Default sampling rule for the encoder."""
        return getattr(self.encoder, "rule", UNIFORM)

    @classmethod
    def of(
        cls,
        encoder: nn.Module,
        edge_types: Iterable[EdgeTypeName],
        decoder: DecoderKind,
        width: int,
        relations: Mapping[EdgeTypeName, int] = NO_RELATIONS,
    ) -> LinkPredictor:
        """Make a model with new decoders.

        Args:
            encoder: Module that returns a batch's rows by node type, one per seed.
            edge_types: Edge types whose links are scored.
            decoder: Kind of the decoders: "dot", "mlp", "distmult", "transe", "complex" or "rotate". The last
                four have a table of relations, which the edge types share.
            width: Width of the encoder's rows.
            relations: Number of relations of the edge types whose links have a relation column (default: no
                edge types).
        Returns:
            The model.
        """
        types = [edge_type_of(t) for t in edge_types]
        counts = {edge_type_of(t): n for t, n in relations.items()}
        unknown = [t for t in counts if t not in types]
        if unknown:
            raise ValueError(f"relations of {unknown}: not an edge type of the model, which scores {types}")
        rows = {t: counts.get(t, 1) for t in types}
        if decoder in RELATION_DECODERS and (len(types) > 1 or counts):
            made = decoder_of(decoder, width, sum(rows.values()))
            assert isinstance(made, RelationDecoder)
            return cls(encoder, SharedDecoder(made, rows))
        return cls(encoder, {t: decoder_of(decoder, width, n) for t, n in rows.items()})

    def decoder(self, edge_type: EdgeTypeName) -> Decoder:
        """Return the decoder of an edge type; for a shared decoder, its relations of this type."""
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
        """Score the links of a batch.

        Args:
            batch: Batch of a `khop.LinkSampler`.
        Returns:
            Scores by edge type, in the layout of `batch.links`.
        """
        if not batch.links:
            raise ValueError("the batch has no links: give the loader a khop.LinkSampler and links as seeds")
        for edge_type in batch.links:
            self.decoder(edge_type)
        rows = _rows_of_ends(self.encoder, batch)
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
