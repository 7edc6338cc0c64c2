"""Scores of given pairs of nodes, over all neighbors."""

from __future__ import annotations

import torch
from torch import Tensor

from khop.features.store import FeatureStore
from khop.graph.store import GraphStore
from khop.inference.chunk_bounds import ChunkLimits
from khop.inference.chunks import evaluating
from khop.inference.collective_chunks import InferenceWork
from khop.inference.exact_draws import ExactDraws
from khop.inference.layer_stores import Memory
from khop.inference.node_outputs import Layers
from khop.models.link_predictor import LinkPredictor
from khop.schema import EdgeType, NodeType
from khop.training.move import mover


def pair_scores(
    model: LinkPredictor,
    graph: GraphStore,
    features: FeatureStore,
    edge_type: EdgeType,
    pairs: tuple[Tensor, Tensor],
    work: InferenceWork,
    draws: ExactDraws,
) -> Tensor:
    """Return (n): the scores of pairs, which are the sources and the destinations, int64 (n) each.

    The rows of these nodes alone are computed, layer by layer by the rule of training.
    ValueError if the encoder does not expose its layers.
    """
    ends = edge_type[0], edge_type[2]
    wanted: dict[NodeType, Tensor] = {}
    for node_type, nodes in zip(ends, pairs, strict=True):
        wanted[node_type] = torch.cat([wanted.get(node_type, nodes[:0]), nodes]).unique()
    limits = ChunkLimits(work.chunk_size, work.chunk_edges)
    layers = Layers.of(model.encoder, graph, features, wanted, limits, draws=draws)
    sharing = layers.sharing(work.lanes, work.group, work.in_flight)
    rows = layers.computed(sharing, sharing.layer_store(), work.progress, last=Memory(sharing.group))
    move = mover(model)
    found = [
        move(rows[t][torch.searchsorted(wanted[t], nodes)]) for t, nodes in zip(ends, pairs, strict=True)
    ]
    with torch.no_grad(), evaluating(model):
        return model.decoder(edge_type)(found[0], found[1]).cpu()
