"""Scores of held-out links over sampled neighborhoods: for any encoder, and for links with times."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from khop.batch import Batch, Change
from khop.draw import DrawKey, Purpose
from khop.features.store import FeatureStore
from khop.inference.chunks import ONE_CHUNK, Chunk, Meter, drawn, evaluating
from khop.inference.collective_chunks import InferenceWork
from khop.inference.layer_stores import Memory
from khop.inference.link_evaluation import Scores, check_has_negatives
from khop.inference.stages import Stage
from khop.loading.columns import ColumnChoice
from khop.models.link_predictor import LinkPredictor
from khop.models.node_embedding import gathered
from khop.sampling.link_seeds import LinkList
from khop.sampling.sampler import LinkSeeds, Sampler, Seeds
from khop.schema import EdgeType, NodeType
from khop.training.move import mover


def sampled_link_scores(
    model: LinkPredictor,
    sampler: Sampler,
    features: FeatureStore,
    links: LinkList,
    columns: ColumnChoice,
    work: InferenceWork,
    seed: int = 0,
) -> Scores:
    """Score links and their negatives over sampled neighborhoods: (n) and (n, k) per edge type.

    `sampler` uses the negatives given with the links, as triplets. One key draws for all chunks. With the
    layered expansion a score is therefore independent of its link's chunk, and two evaluations with the same
    seed differ only by the model. The ranks of a group share the work.
    """
    check_has_negatives(links)
    key = DrawKey.of(seed, Purpose.EVALUATION)
    sharing = work.sharing(sampler.graph, features)
    meter = Meter(work.progress, sum(links.counts.values()), sharing)
    found: Scores = {}
    first = 0
    with evaluating(model), gathered(model):
        for edge_type, count in links.counts.items():
            chunks = LinkChunks(sampler, features, columns, key, mover(model), links, edge_type, first)

            def scores_of(batch: Batch, of: EdgeType = edge_type) -> Tensor:
                scores = model(batch)[of]
                assert scores.negatives is not None
                return torch.cat([scores.pairs.unsqueeze(1), scores.negatives], dim=1)

            one = chunks.made(edge_type[2], torch.arange(min(1, count))).map(chunks.move)
            stage = Stage(0, edge_type[2], count, work.chunk_size, scores_of(one).cpu()[:0])
            scores = meter.rows(stage, Memory(sharing.group), chunks, scores_of)
            found[edge_type] = (scores[:, 0], scores[:, 1:])
            first += count
    return found


@dataclass(frozen=True)
class LinkChunks:
    """Maker of batches for links of one edge type."""

    sampler: Sampler
    features: FeatureStore
    columns: ColumnChoice
    key: DrawKey
    move: Change
    links: LinkList
    edge_type: EdgeType
    first: int  # position of the type's first link among the links of all types

    def with_threads(self, threads: int) -> LinkChunks:
        """Return a source that draws the same batches with several threads each."""
        return replace(self, sampler=self.sampler.with_threads(threads)) if threads > 1 else self

    def made(
        self, node_type: NodeType, nodes: Tensor, times: Tensor | None = None, chunk: Chunk = ONE_CHUNK
    ) -> Batch:
        """Make the batch of the links with these numbers."""
        found = self.links.rows(self.edge_type, nodes)
        asked = replace(found, positions=self.first + nodes, labels=None)
        seeds = Seeds({}, {}, links=LinkSeeds({self.edge_type: asked}, self.key))
        sample, columns, seed_columns = drawn(
            self.sampler, self.features, self.columns, seeds, self.key, chunk
        )
        planted = {t: sample.nodes[t][index] for t, index in sample.seed_index.items()}
        return Batch(sample, planted, columns, seed_columns, 0, 0, nodes.numel())
