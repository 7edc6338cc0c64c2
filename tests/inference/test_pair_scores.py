"""Scores of pairs from the rows of their nodes alone are those from the rows of all nodes."""

from __future__ import annotations

import pytest
import torch

from khop.inference.chunks import InferenceWork
from khop.inference.link_evaluation import node_rows, pair_scores
from khop.inference.node_outputs import ALL_NEIGHBORS
from khop.models.link_predictor import LinkPredictor
from khop.models.sage import SAGE
from support.small_graphs import shop

BUYS, HAS = ("user", "buys", "item"), ("item", "has", "tag")


@pytest.mark.core(1)
@pytest.mark.parametrize("decoder", ["dot", "mlp", "distmult"])
@pytest.mark.parametrize("edge_type", [BUYS, HAS])
def test_scores_are_those_from_the_rows_of_all_nodes(decoder: str, edge_type: tuple[str, str, str]) -> None:
    graph = shop()
    ends = edge_type[::2]
    encoder = SAGE.for_graph(graph.store, hidden=8, layers=2, target=list(ends), outputs=6, embedding=4)
    model = LinkPredictor.of(encoder, [edge_type], decoder, 6).eval()  # type: ignore[arg-type]
    pairs = torch.tensor([4, 0, 4, 17]), torch.tensor([3, 3, 1, 0])
    found = pair_scores(model, graph.store, graph.features, edge_type, pairs, InferenceWork(2), ALL_NEIGHBORS)
    rows = node_rows(encoder, graph.store, graph.features, ends)
    with torch.no_grad():
        expected = model.decoder(edge_type)(rows[ends[0]][pairs[0]], rows[ends[1]][pairs[1]])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert not found.requires_grad
