"""Outputs of a model for labeled links: over all neighbors, or over sampled neighborhoods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from khop.batch import Batch
from khop.draw import DrawKey, Purpose
from khop.features.store import FeatureStore
from khop.graph.store import GraphStore
from khop.inference.chunks import Meter, evaluating
from khop.inference.collective_chunks import InferenceWork
from khop.inference.evaluation import EdgeOutputs, split_scores
from khop.inference.exact_draws import ExactDraws
from khop.inference.layer_stores import Memory
from khop.inference.link_evaluation import CHUNK_NUMBERS, decoded_rows, end_rows, rows_of_pairs
from khop.inference.sampled_links import LinkChunks
from khop.inference.stages import Stage
from khop.loading.columns import ColumnChoice
from khop.models.edge_predictor import EdgePredictor
from khop.models.node_embedding import gathered
from khop.sampling.link_seeds import LinkList
from khop.sampling.sampler import Sampler, SeedLinks
from khop.schema import EdgeType
from khop.training.edge_tasks import EdgeObjective
from khop.training.move import mover

_LINKS_AT_ONCE = 1 << 18


def exact_edge_outputs(
    model: EdgePredictor,
    graph: GraphStore,
    features: FeatureStore,
    links: LinkList,
    work: InferenceWork,
    draws: ExactDraws,
) -> dict[EdgeType, Tensor]:
    """Compute exact outputs, layer by layer by the rule of training: (links, outputs) per edge type.

    The encoder first computes a row for every node. The ranks of a group share the work.
    """
    rows, sharing = end_rows(model.encoder, graph, features, links, work, draws)
    move, found = mover(model), dict[EdgeType, Tensor]()
    with evaluating(model):
        for edge_type, count in links.counts.items():
            head = model.head(edge_type)
            edges = all_links(links, edge_type)[0]

            def pairs(
                numbers: slice, edges: Tensor = edges, of: EdgeType = edge_type
            ) -> tuple[Tensor, Tensor]:
                return rows_of_pairs(rows, of, edges[0, numbers], edges[1, numbers].unsqueeze(1))

            def outputs(ends: tuple[Tensor, ...], head: nn.Module = head) -> Tensor:
                made: Tensor = head(*(move(end).squeeze(1) for end in ends))
                return made

            none = pairs(slice(0, 0))
            at_once = max(1, CHUNK_NUMBERS // (2 * none[0].shape[2]))
            stage = Stage(0, edge_type[2], count, at_once, outputs(none).cpu())
            found[edge_type] = decoded_rows(stage, pairs, outputs, sharing)
    return found


def sampled_edge_outputs(
    model: EdgePredictor,
    sampler: Sampler,
    features: FeatureStore,
    links: LinkList,
    columns: ColumnChoice,
    work: InferenceWork,
    seed: int = 0,
) -> dict[EdgeType, Tensor]:
    """Compute outputs over sampled neighborhoods: (links, outputs) per edge type.

    `sampler` draws no negatives. One key draws for all chunks, so with the layered expansion an output does
    not depend on its link's chunk. The ranks of a group share the work.
    """
    key, found, first = DrawKey.of(seed, Purpose.EVALUATION), dict[EdgeType, Tensor](), 0
    sharing = work.sharing(sampler.graph, features)
    meter = Meter(work.progress, sum(links.counts.values()), sharing)
    with evaluating(model), gathered(model):
        for edge_type, count in links.counts.items():
            chunks = LinkChunks(sampler, features, columns, key, mover(model), links, edge_type, first)

            def outputs_of(batch: Batch, of: EdgeType = edge_type) -> Tensor:
                rows: Tensor = model(batch)[of]
                return rows

            one = chunks.made(edge_type[2], torch.arange(min(1, count))).map(chunks.move)
            stage = Stage(0, edge_type[2], count, work.chunk_size, outputs_of(one).cpu()[:0])
            found[edge_type] = meter.rows(stage, Memory(sharing.group), chunks, outputs_of)
            first += count
    return found


def edge_scores(
    task: EdgeObjective, splits: Mapping[str, EdgeOutputs], beside: Sequence[str] = ()
) -> dict[str, float]:
    """Compute the task's metric for each split. Metrics in `beside` are added, as "val/f1-macro"."""
    found: dict[str, float] = {}
    for split, of_split in splits.items():
        given = of_split.outputs, of_split.labels, of_split.edges
        found |= split_scores(split, task.metric, beside, partial(task.score, *given))
    return found


def labeled_outputs(links: LinkList, edge_type: EdgeType, outputs: Tensor) -> EdgeOutputs:
    """Join outputs with the ends and labels of all links of a type. Collective where ranks hold the links."""
    return EdgeOutputs(*all_links(links, edge_type), outputs)


def all_links(links: LinkList, edge_type: EdgeType) -> tuple[Tensor, Tensor]:
    """Return int64 (2, links), the ends of all links of a type, and (links, ...), their labels.

    Collective where ranks hold the links; servers send some at a time.
    """
    pieces = _pieces(links, edge_type)
    labels = [piece.labels for piece in pieces if piece.labels is not None]
    assert len(labels) == len(pieces), "the split has labels"
    return torch.cat([piece.edges for piece in pieces], 1), torch.cat(labels)


def ends_of_links(links: LinkList, edge_type: EdgeType) -> Tensor:
    """Return int64 (2, links), the ends of all links of a type. Collective where ranks hold the links."""
    return torch.cat([piece.edges for piece in _pieces(links, edge_type)], 1)


def triples_of_links(links: LinkList, edge_type: EdgeType) -> Tensor:
    """Return int64 (3, links): source, relation and destination of all links of a type. Collective likewise.

    Links without relations have relation 0.
    """
    found = []
    for piece in _pieces(links, edge_type):
        relations = torch.zeros_like(piece.edges[0]) if piece.relations is None else piece.relations
        found.append(torch.stack([piece.edges[0], relations, piece.edges[1]]))
    return torch.cat(found, 1)


def _pieces(links: LinkList, edge_type: EdgeType) -> list[SeedLinks]:
    return [
        links.rows(edge_type, numbers)
        for numbers in torch.arange(links.counts[edge_type]).split(_LINKS_AT_ONCE)
    ]


def check_labeled(links: LinkList, edge_type: EdgeType) -> None:
    """Raise ValueError unless there are links of the edge type, and they have labels."""
    if "labels" not in links.facts:
        raise ValueError(
            "links without labels cannot be evaluated: give khop.Links(..., labels=...), or split the edges "
            "with khop.split_links(label=...)"
        )
    if not links.counts.get(edge_type):
        raise ValueError(f"links of {edge_type}: there are none to evaluate, only of {list(links.counts)}")
