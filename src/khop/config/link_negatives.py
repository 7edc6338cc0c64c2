"""Training negatives of a link-prediction run, and its table of hard negatives."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from khop.api.split_links import LinkSplit
from khop.config.contexts import TaskContext, rule_of
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
from khop.models.link_predictor import LinkPredictor
from khop.runtime.group import this_group
from khop.sampling.hard_negatives import hard_negatives
from khop.schema import EdgeType

TABLE = "hard_negatives"  # the buffer of the model with the table, so that checkpoints have it


@dataclass(frozen=True, eq=False)
class HardTable:
    """The hard negatives of each source: destinations of high scores that are no training links."""

    context: TaskContext
    split: LinkSplit
    edge_type: EdgeType
    model: LinkPredictor

    @classmethod
    def of(
        cls, context: TaskContext, split: LinkSplit, edge_type: EdgeType, model: LinkPredictor
    ) -> HardTable:
        """Add the table to the model, with node 0 in it until it is computed before the first epoch."""
        sources = split.train.num_nodes(edge_type[0])
        rows = torch.zeros(sources, context.config.links.hard_negatives, dtype=torch.int64)
        model.register_buffer(TABLE, rows)
        return cls(context, split, edge_type, model)

    @property
    def rows(self) -> Tensor:
        """The table, int64 (sources, negatives)."""
        return self.model.get_buffer(TABLE)

    def refresh(self, epoch: int) -> None:
        """Compute the table before every `links.hard_every`-th epoch. Collective.

        Embeddings are computed over all neighbors in the training graph, and rounded: see
        `khop.hard_negatives`.
        """
        config, graph, (source, _, destination) = self.context.config, self.split.train, self.edge_type
        if epoch % config.links.hard_every:
            return
        rows = node_rows(
            self.model.encoder,
            graph,
            graph.features,
            list(dict.fromkeys((source, destination))),
            rule=rule_of(config, graph),
            chunk_size=config.evaluation.batch_size,
            chunk_edges=config.evaluation.batch_edges,
            in_flight=in_flight_of(config),
            group=this_group(),
            lanes=graph.lanes,
        )
        found = hard_negatives(
            rows[source],
            rows[destination],
            config.links.hard_negatives,
            known=self._known(),
            original_ids=graph.original_ids(destination),
        )
        self.rows.copy_(found)

    def _known(self) -> Tensor:
        """Return the training links, and pairs of a node with itself, int64 (2, pairs)."""
        source, _, destination = self.edge_type
        known = ends_of_links(self.split.train_links, self.edge_type)
        if self.split.train.schema.reverse(self.edge_type) == self.edge_type:
            known = torch.cat([known, known.flip(0)], 1)
        if source == destination:
            nodes = torch.arange(self.split.train.num_nodes(source))
            known = torch.cat([known, torch.stack([nodes, nodes])], 1)
        return known


def negatives_of(links: Links, hard: Tensor | None) -> Negatives:
    """Return the training negatives: separate pairs, or triplets for a ranking loss.

    Shared negatives come first, then those of each link, then the `hard` ones of a table.
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
