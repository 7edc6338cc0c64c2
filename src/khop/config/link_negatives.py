"""Training negatives of a link-prediction run, and its tables of hard negatives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from khop.api.split_links import LinkSplit
from khop.config.contexts import TaskContext, exact_draws_of
from khop.config.parts import in_flight_of
from khop.config.values import Links
from khop.draw import (
    DegreeNegatives,
    DrawnNegatives,
    MixedNegatives,
    NegativeMode,
    Negatives,
    TableNegatives,
    UniformNegatives,
)
from khop.inference.edge_outputs import ends_of_links
from khop.inference.link_evaluation import node_rows
from khop.models.candidate_search import SearchedDecoder
from khop.models.link_predictor import LinkPredictor
from khop.models.names import parameter_name
from khop.runtime.group import this_group
from khop.sampling.hard_negatives import hard_negatives
from khop.schema import EdgeType

TABLE = "hard_negatives"  # the buffer of the model with a table, so that checkpoints have it


@dataclass(frozen=True, eq=False)
class HardTables:
    """By edge type, the hard negatives of each source: destinations of high scores, no training links."""

    context: TaskContext
    split: LinkSplit
    model: LinkPredictor
    names: Mapping[EdgeType, str]  # of the buffers

    @classmethod
    def of(cls, context: TaskContext, split: LinkSplit, model: LinkPredictor) -> HardTables:
        """Add the tables to the model, with node 0 in them until they are computed before the first epoch."""
        types, count = model.edge_types, context.config.links.hard_negatives
        names = {t: TABLE if len(types) == 1 else f"{TABLE} {parameter_name(*t)}" for t in types}
        for edge_type, name in names.items():
            sources = split.train.num_nodes(edge_type[0])
            model.register_buffer(name, torch.zeros(sources, count, dtype=torch.int64))
        return cls(context, split, model, names)

    @property
    def tables(self) -> dict[EdgeType, Tensor]:
        """The tables, int64 (sources, negatives)."""
        return {t: self.model.get_buffer(name) for t, name in self.names.items()}

    def refresh(self, epoch: int) -> None:
        """Compute the tables before every `links.hard_every`-th epoch. Collective.

        Embeddings are computed over all neighbors in the training graph, and rounded: see
        `khop.hard_negatives`.
        """
        config, graph = self.context.config, self.split.train
        if epoch % config.links.hard_every:
            return
        draws = exact_draws_of(config, graph)
        rows = node_rows(
            self.model.encoder,
            graph,
            graph.features,
            list(dict.fromkeys(end for t in self.names for end in (t[0], t[2]))),
            rule=draws.rule,
            fanouts=draws.fanouts,
            chunk_size=config.evaluation.batch_size,
            chunk_edges=config.evaluation.batch_edges,
            in_flight=in_flight_of(config),
            group=this_group(),
            lanes=graph.lanes,
        )
        for edge_type, name in self.names.items():
            source, _, destination = edge_type
            decoder = self.model.decoder(edge_type)
            assert isinstance(decoder, SearchedDecoder)
            with torch.no_grad():
                search = decoder.search(rows[source], rows[destination])
            found = hard_negatives(
                search.queries,
                search.candidates,
                config.links.hard_negatives,
                known=self._known(edge_type),
                original_ids=graph.original_ids(destination),
                score=search.score,
                grid=search.grid,
            )
            self.model.get_buffer(name).copy_(found)

    def _known(self, edge_type: EdgeType) -> Tensor:
        """Return the training links, and pairs of a node with itself, int64 (2, pairs)."""
        source, _, destination = edge_type
        known = ends_of_links(self.split.train_links, edge_type)
        if self.split.train.schema.reverse(edge_type) == edge_type:
            known = torch.cat([known, known.flip(0)], 1)
        if source == destination:
            nodes = torch.arange(self.split.train.num_nodes(source))
            known = torch.cat([known, torch.stack([nodes, nodes])], 1)
        return known


def negatives_of(links: Links, hard: Mapping[EdgeType, Tensor] | None) -> Negatives:
    """Return the training negatives: separate pairs, or triplets for a ranking loss.

    Shared negatives come first, then those of each link, then the `hard` ones of tables by edge type.
    """
    mode = NegativeMode.BINARY if links.loss == "bce" else NegativeMode.TRIPLET
    parts: list[DrawnNegatives | TableNegatives] = []
    if links.shared_negatives:
        parts.append(_drawn(links, links.shared_negatives, mode, links.negatives_group))
    group = 1 if links.shared_negatives else links.negatives_group
    parts.append(_drawn(links, links.negatives_per_positive, mode, group))
    if hard is not None:
        parts.append(TableNegatives(hard, mode))
    return parts[0] if len(parts) == 1 else MixedNegatives(tuple(parts))


def _drawn(links: Links, count: int, mode: NegativeMode, group: int) -> DrawnNegatives:
    exact = links.exact and group == 1
    if links.negatives == "degree":
        return DegreeNegatives(count, mode, exact, group=group, corrupt=links.corrupt)
    return UniformNegatives(count, mode, exact, group, links.corrupt)
