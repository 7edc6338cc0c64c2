"""Inputs at the edge of sense have documented results, or errors of one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import khop

TO = ("node", "to", "node")


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> khop.Graph:
    """Node 0 has two in-edges of weight 0, node 1 one of weight 2 and one of weight 0."""
    weights = torch.tensor([0.0, 0.0, 2.0, 0.0])
    edges = khop.EdgeTable(torch.tensor([1, 2, 0, 2]), torch.tensor([0, 0, 1, 1]), {"w": weights})
    nodes = khop.NodeTable(3, {"x": torch.eye(3), "y": torch.tensor([0, 1, 0])}, num_classes={"y": 2})
    path = tmp_path_factory.mktemp("odd") / "graph"
    return khop.open_graph(khop.write_graph(path, {"node": nodes}, {TO: edges}))


@pytest.mark.parametrize("replacement", [False, True])
def test_a_row_of_zero_weights_has_no_neighbors(graph: khop.Graph, replacement: bool) -> None:
    for fanout in (2, -1):
        rule = khop.Weighted("w", replacement=replacement)
        sampler = khop.NeighborSampler(graph, [fanout], rule=rule)
        adjacency = khop.Loader(sampler, torch.arange(2), 2).batch(0, 0).blocks[0].adjacency
        weights = torch.ones(adjacency.indices.numel()) if adjacency.weight is None else adjacency.weight
        rows = torch.repeat_interleave(torch.arange(2), adjacency.indptr.diff())
        of_row_0 = weights[rows == 0]
        assert not of_row_0.isnan().any()
        assert fanout == -1 or of_row_0.numel() == 0
        assert of_row_0.sum() == 0 or (fanout == -1 and not replacement)


def test_exact_outputs_of_a_row_of_zero_weights_are_those_of_the_node_alone(graph: khop.Graph) -> None:
    model = khop.models.SAGE.for_graph(graph, 4, 1)
    rule = khop.Weighted("w", replacement=True)
    exact = khop.layerwise_inference(model, graph.topology, graph.features, "node", rule=rule)
    sampler = khop.NeighborSampler(graph, [0])
    alone = model(khop.Loader(sampler, torch.arange(3), 3, columns=["x"]).batch(0, 0))
    assert torch.allclose(exact[0], alone[0])
    assert torch.allclose(exact[2], alone[2]), "a node without in-edges"
    assert not torch.allclose(exact[1], alone[1])


@pytest.mark.parametrize("rule", [khop.Weighted("v"), khop.TopK("v"), khop.Temporal("v")])
def test_a_missing_column_is_named(graph: khop.Graph, rule: khop.Rule) -> None:
    with pytest.raises(ValueError, match=r"'v'.*'?w'?") as caught:
        khop.Loader(khop.NeighborSampler(graph, [2], rule=rule), torch.arange(2), 2).batch(0, 0)
    assert len(str(caught.value).splitlines()) == 1


def test_a_label_outside_the_classes_of_the_model_is_named(graph: khop.Graph) -> None:
    sampler = khop.NeighborSampler(graph, [2])
    batch = khop.Loader(sampler, torch.arange(2), 2, columns=["x"], seed_columns=["y"]).batch(0, 0)
    with pytest.raises(ValueError, match=r"label"):
        khop.NodeClassification("node", "y").losses(torch.zeros(2, 1), batch)


def test_nan_weights_are_refused_where_the_graph_is_written(tmp_path: Path) -> None:
    edges = khop.EdgeTable(torch.tensor([0]), torch.tensor([0]), {"w": torch.tensor([float("nan")])})
    with pytest.raises(ValueError, match=r"column 'w'\[0\] is nan: not a finite number"):
        khop.write_graph(tmp_path / "g", {"node": khop.NodeTable(1)}, {TO: edges})
