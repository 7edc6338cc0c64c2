"""Outputs of edges: exact over all neighbors, alike in every chunk, and the same over servers."""

from __future__ import annotations

import pytest
import torch

import khop
from khop.api.evaluate import evaluate_edges
from khop.inference.collective_chunks import InferenceWork
from khop.inference.edge_outputs import exact_edge_outputs, sampled_edge_outputs
from khop.inference.exact_draws import ALL_NEIGHBORS
from khop.inference.link_evaluation import node_rows
from khop.loading.columns import ColumnChoice
from khop.models.edge_predictor import EdgePredictor
from khop.sampling.links import LinkSampler
from khop.training.edge_tasks import EdgeClassification
from support.small_links import BUYS, ON, graph, links, predictor

TYPES = ("user", "item", "tag", "item")


def model_of() -> EdgePredictor:
    torch.manual_seed(2)
    return EdgePredictor.of(predictor("dot").encoder, [BUYS, ON], 5, 3).double()


def labeled() -> khop.Links:
    given = links(0)
    return khop.Links(given.edges, {t: torch.arange(n) % 4 - 1 for t, n in given.counts.items()})


@pytest.mark.parametrize("chunk_size", [3, 100])
def test_exact_outputs_are_those_of_the_heads_over_the_rows_of_all_nodes(chunk_size: int) -> None:
    model, whole, given = model_of(), graph(), labeled()
    work = InferenceWork(chunk_size)
    found = exact_edge_outputs(model, whole, whole.features, given, work, ALL_NEIGHBORS)
    rows = node_rows(model.encoder, whole, whole.features, TYPES)
    columns = ColumnChoice.of(whole.schema, ["x"], (), ())
    sampler = LinkSampler(whole, [-1, -1])
    sampled = sampled_edge_outputs(model, sampler, whole.features, given, columns, work)
    for edge_type, (sources, destinations) in given.edges.items():
        expected = model.head(edge_type)(rows[edge_type[0]][sources], rows[edge_type[2]][destinations])
        torch.testing.assert_close(found[edge_type], expected, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(sampled[edge_type], expected, rtol=1e-9, atol=1e-9)


def test_an_edge_is_sampled_alike_in_every_chunk_and_every_evaluation() -> None:
    model, whole, sampler = model_of(), graph(), LinkSampler(graph(), [2, 1], trees="disjoint")
    columns = ColumnChoice.of(whole.schema, ["x"], (), ())
    first, second, other = (
        sampled_edge_outputs(model, sampler, whole.features, labeled(), columns, InferenceWork(size), seed)
        for size, seed in ((2, 0), (23, 0), (23, 1))
    )
    torch.testing.assert_close(first[BUYS], second[BUYS], rtol=1e-9, atol=1e-9)
    assert not torch.allclose(second[BUYS], other[BUYS])


def test_a_score_is_that_of_the_outputs() -> None:
    model, whole, task = model_of(), khop.Graph.of(graph()), EdgeClassification(BUYS, "stars")
    outputs = exact_edge_outputs(model, whole, whole.features, labeled(), InferenceWork(100), ALL_NEIGHBORS)[
        BUYS
    ]
    labels = torch.arange(outputs.shape[0]) % 4 - 1
    expected = float((outputs.argmax(1) == labels)[labels >= 0].double().mean())
    assert evaluate_edges(model, whole, labeled(), task) == expected
    assert evaluate_edges(model, whole, labeled(), task, fanouts=[-1, -1], columns=["x"]) == expected


def test_links_without_labels_and_other_models_are_errors() -> None:
    model, whole, task = model_of(), khop.Graph.of(graph()), EdgeClassification(BUYS, "stars")
    with pytest.raises(ValueError, match="links without labels cannot be evaluated"):
        evaluate_edges(model, whole, links(0), task)
    with pytest.raises(ValueError, match=r"links of .*: there are none to evaluate"):
        evaluate_edges(model, whole, labeled(), EdgeClassification("a b c", "stars"))
    with pytest.raises(ValueError, match=r"evaluate_edges of a LinkPredictor: it takes a khop.models.EdgePr"):
        evaluate_edges(predictor("dot"), whole, labeled(), task)
