"""Scores over a graph on servers equal local ones: exact and sampled, of nodes and of links."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest
import torch

import khop
from khop.api.serve import ServedGraph, graph_on
from khop.models import SAGE, EdgePredictor
from khop.sampling.seeds import ids_here
from khop.servers.access import Answer, Buffer, CallContext
from khop.servers.errors import TooLarge
from khop.servers.service import Service
from support.batch_kinds import link_scores
from support.in_process import InProcess, connected, exchange_with
from support.small_folders import write_hub_graph
from support.small_labeled import LIKE as LABELED
from support.small_labeled import write_labeled_graph
from support.small_typed_folders import BUYS, LIKE

Received = TypeVar("Received")


def test_the_exact_score_is_the_local_one(plain_graph: khop.Graph) -> None:
    model = SAGE.for_graph(plain_graph, hidden=8, layers=2)
    exchange = exchange_with(plain_graph, 2)
    remote = graph_on(exchange)
    assert khop.evaluate(model, remote, split="val") == khop.evaluate(model, plain_graph, split="val")
    found = khop.layerwise_inference(model, remote, remote.features, "item", chunk_size=100)
    expected = khop.layerwise_inference(model, plain_graph, plain_graph.features, "item", chunk_size=100)
    assert torch.equal(found, expected)
    assert {stage for stage, _ in exchange.asked} == {"batch", "ids", "rows", "in-degrees"}


def test_errors_of_servers_name_the_chunk_and_its_layer(plain_graph: khop.Graph) -> None:
    exchange = exchange_with(plain_graph)
    model = SAGE.for_graph(plain_graph, hidden=8, layers=2)
    remote = graph_on(exchange)
    khop.layerwise_inference(model, remote, remote.features, "item", chunk_size=200)
    of_chunks = {each for each in exchange.subjects if "layer" in each}
    assert of_chunks == {
        f"computing layer {layer} of item, from row {row}" for layer in (1, 2) for row in (0, 200, 400)
    }
    assert not any("epoch" in each for each in exchange.subjects)


class _Repeats(InProcess):
    """Gives the answer to the first chunk of the first layer again and again."""

    kept: Sequence[Buffer] = ()

    def ask(
        self, context: CallContext, request: bytes, receive: Callable[[Iterator[Buffer]], Received]
    ) -> Answer[Received]:
        if "layer 1" not in context.words:
            return super().ask(context, request, receive)
        self.kept = self.kept or [bytes(each) for each in self.services[0].accept(request).run()]
        return Answer(receive(iter(self.kept)), "server", 0, 0, 0, 0.0)


def test_the_rows_of_another_chunk_are_refused(plain_graph: khop.Graph) -> None:
    remote = graph_on(_Repeats([Service(ServedGraph.of(plain_graph))]))
    model = SAGE.for_graph(plain_graph, hidden=8, layers=2)
    with pytest.raises(ValueError, match="asked was another batch"):
        khop.layerwise_inference(model, remote, remote.features, "item", chunk_size=200)


def test_rows_of_layers_stay_with_the_client(plain_graph: khop.Graph) -> None:
    """Only the first layer asks for columns; no model travels, and no output either."""
    exchange = exchange_with(plain_graph)
    remote = graph_on(exchange)
    model = SAGE.for_graph(plain_graph, hidden=256, layers=2)
    khop.layerwise_inference(model, remote, remote.features, "item")
    assert all(size < 600 * 8 * 3 + 4096 for _, size in exchange.asked)  # node ids and positions


def test_exact_evaluation_keeps_within_a_limit_of_bytes(plain_graph: khop.Graph) -> None:
    """A request counts as the edges of its nodes: smaller chunks pass where a large one does not."""
    service = Service(ServedGraph.of(plain_graph), max_batch_bytes=30_000)
    remote = graph_on(InProcess([service]))
    model = SAGE.for_graph(plain_graph, hidden=8, layers=2)
    found = khop.layerwise_inference(model, remote, remote.features, "item", chunk_size=20)
    expected = khop.layerwise_inference(model, plain_graph, plain_graph.features, "item", chunk_size=20)
    assert torch.equal(found, expected)
    with pytest.raises(TooLarge, match="use a smaller batch_size"):
        khop.layerwise_inference(model, remote, remote.features, "item", chunk_size=600)


def test_the_sampled_score_is_the_local_one(plain_graph: khop.Graph) -> None:
    model = SAGE.for_graph(plain_graph, hidden=8, layers=2)
    nodes = ids_here(plain_graph.split("test")["item"])

    def outputs(graph: khop.Graph) -> torch.Tensor:
        sampler = khop.NeighborSampler(graph, [3, 3])
        loader = khop.Loader(sampler, nodes, 64, columns=["x"])
        return khop.sampled_inference(
            model, sampler, graph.features, "item", nodes=nodes, columns=loader.columns
        )

    assert torch.equal(outputs(connected(plain_graph)), outputs(plain_graph))


@dataclass(frozen=True)
class Hubs:
    """A graph with two nodes of 5,000 edges each, here and on a server of small batches."""

    here: khop.Graph
    there: khop.Graph
    service: Service


@pytest.fixture(scope="module")
def hubs(tmp_path_factory: pytest.TempPathFactory) -> Hubs:
    here = khop.open_graph(write_hub_graph(tmp_path_factory.mktemp("hubs") / "graph"))
    service = Service(ServedGraph.of(here), max_batch_bytes=36_000)
    return Hubs(here, graph_on(InProcess([service])), service)


def test_hubs_do_not_make_large_batches_beside_others(hubs: Hubs) -> None:
    """Chunks of a node with 5,000 edges have this node alone; the others have at most 400 edges."""
    model = SAGE.for_graph(hubs.here, hidden=8, layers=2)

    def rows(graph: khop.Graph) -> torch.Tensor:
        return khop.layerwise_inference(model, graph, graph.features, "item", chunk_size=200, chunk_edges=400)

    assert torch.equal(rows(hubs.there), rows(hubs.here))
    with pytest.raises(TooLarge, match="--evaluation-batch-edges in exact evaluation"):
        khop.layerwise_inference(model, hubs.there, hubs.there.features, "item", chunk_size=200)


def test_a_hub_that_is_too_large_by_itself_is_named(hubs: Hubs) -> None:
    model = SAGE.for_graph(hubs.here, hidden=8, layers=2)
    graph = graph_on(InProcess([Service(ServedGraph.of(hubs.here), max_batch_bytes=15_000)]))
    with pytest.raises(TooLarge, match=r"the batch of node 133 of 'item' alone could have [\d,]+ bytes"):
        khop.layerwise_inference(model, graph, graph.features, "item", chunk_edges=100)


def test_in_degrees_of_a_view_are_those_of_its_edges(typed_graph: khop.Graph) -> None:
    def degrees(graph: khop.Graph) -> list[list[int]]:
        train = khop.split_links(graph.only([BUYS, LIKE]), BUYS, 0.1, 0.1, seed=2).train
        nodes = torch.tensor([5, 0, 199, 5])
        return [train.in_degrees(edge_type, nodes).tolist() for edge_type in (BUYS, LIKE)]

    assert degrees(connected(typed_graph)) == degrees(typed_graph)
    with pytest.raises(ValueError, match="nodes 1 to 999: there are 200"):
        connected(typed_graph).in_degrees(LIKE, torch.tensor([1, 999]))


@pytest.mark.parametrize("fanouts", [None, [3]])
def test_scores_of_links_are_the_local_ones(typed_graph: khop.Graph, fanouts: list[int] | None) -> None:
    assert link_scores(connected(typed_graph), fanouts) == link_scores(typed_graph, fanouts)


@pytest.mark.parametrize("fanouts", [None, [3, 2]])
def test_scores_of_labels_of_edges_are_the_local_ones(tmp_path: Path, fanouts: list[int] | None) -> None:
    graph = khop.open_graph(write_labeled_graph(tmp_path / "labeled"))

    def score(graph: khop.Graph) -> tuple[float, list[float]]:
        split = khop.split_links(graph, LABELED, label="stars", negatives=0, seed=2)
        with torch.random.fork_rng():
            torch.manual_seed(3)
            encoder = SAGE.for_graph(split.train, hidden=8, layers=2, target=["item"], outputs=5)
            model = EdgePredictor.of(encoder, [LABELED], 5, 3)
        sampler = khop.LinkSampler(split.train, [3, 2], exclude="edge")
        task = khop.EdgeClassification(LABELED, "stars")
        batch = khop.Loader(sampler, split.train_links, 100, shuffle=True, columns=["x"]).batch(0, 1)
        losses = task.losses(model(batch), batch).tolist()
        return khop.evaluate_edges(model, split.val, split.val_links, task, fanouts=fanouts), losses

    assert score(connected(graph)) == score(graph)
