"""Models over sparse columns compute and learn the same as over the dense columns, with the same weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import sparse
from torch import Tensor, nn

import khop
from khop import models

WORDS = 60
RULES: dict[str, khop.Rule] = {"GCN": khop.SymmetricSum(), "GIN": khop.Sum(), "LightGCN": khop.SymmetricSum()}
MODELS: dict[str, Callable[[khop.Graph], nn.Module]] = {
    "SAGE": lambda graph: models.SAGE.for_graph(graph, 8, 2, target="item"),
    "SAGE linear": lambda graph: models.SAGE.for_graph(graph, 8, 2, target="item", encoder="linear"),
    "SAGE as wide as words": lambda graph: models.SAGE.for_graph(
        graph, WORDS, 2, target="item", residual="add"
    ),
    "SAGE with embeddings": lambda graph: models.SAGE.for_graph(
        graph, 8, 2, target="item", encoder="linear", embedding=4, embedded_types="all"
    ),
    "GCN": lambda graph: models.GCN.for_graph(graph, 8, 2, target="item"),
    "GAT": lambda graph: models.GAT.for_graph(graph, 8, 2, target="item", heads=2),
    "GATv2": lambda graph: models.GAT.for_graph(graph, 8, 2, target="item", heads=2, attention="gatv2"),
    "GIN": lambda graph: models.GIN.for_graph(graph, 8, 2, target="item"),
    "HGT": lambda graph: models.HGT.for_graph(graph, 8, 2, target="item", heads=2),
    "RGCN": lambda graph: models.RGCN.for_graph(graph, 8, 2, target="item"),
    "LightGCN": lambda graph: models.LightGCN.for_graph(graph, 8, 2, target="item"),
}


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> list[khop.Graph]:
    """The same graph with sparse and with dense words."""
    return [
        khop.open_graph(write(tmp_path_factory.mktemp("graph") / kind, kind)) for kind in ("sparse", "dense")
    ]


def write(path: Path, kind: str) -> Path:
    """Write items and users with words, and edges between them in both directions."""
    generator = np.random.default_rng(5)
    nodes = {}
    for node_type, count in (("item", 40), ("user", 25)):
        words = sparse.random(count, WORDS, 0.08, format="csr", random_state=count, dtype=np.float32)
        label = {"y": torch.arange(count) % 3} if node_type == "item" else {}
        column = words if kind == "sparse" else words.toarray()
        nodes[node_type] = khop.NodeTable(
            count, {"x": column, **label}, num_classes={"y": 3} if label else {}
        )
    users, items = (torch.from_numpy(generator.integers(0, count, 200)) for count in (25, 40))
    edges = {
        ("user", "likes", "item"): khop.EdgeTable(users, items, reverse_of=("item", "liked", "user")),
        ("item", "liked", "user"): khop.EdgeTable(items, users),
    }
    return khop.write_graph(path, nodes, edges)


def outputs(graph: khop.Graph, model: nn.Module, rule: khop.Rule) -> tuple[Tensor, list[Tensor | None]]:
    """Compute outputs of a sampled batch, and the gradient of every parameter."""
    sampler = khop.NeighborSampler(graph, [3, 3], rule=rule)
    batch = khop.Loader(sampler, {"item": torch.arange(40)}, 40, columns=["x"], seed=1).batch(0, 0)
    out = model(batch)
    (out * torch.arange(out.numel(), dtype=out.dtype).view_as(out)).sum().backward()
    return out.detach(), [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("name", MODELS)
def test_a_model_computes_the_same_and_has_the_same_gradients(name: str, graphs: list[khop.Graph]) -> None:
    rule = RULES.get(name, khop.Uniform())
    made = [MODELS[name](graph).double() for graph in graphs]
    made[1].load_state_dict(made[0].state_dict())
    (out, gradients), (expected, of_dense) = (
        outputs(graph, model, rule) for graph, model in zip(graphs, made, strict=True)
    )
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-9)
    for ours, theirs in zip(gradients, of_dense, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-6)
    exact = [
        khop.layerwise_inference(model, graph.topology, graph.features, "item", rule=rule, chunk_size=7)
        for graph, model in zip(graphs, made, strict=True)
    ]
    torch.testing.assert_close(exact[0], exact[1], rtol=0, atol=1e-9)


class Mean(nn.Module):
    """A linear layer over the sum of own rows and neighbors' mean."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 4)

    def forward(self, x: Tensor, adjacency: khop.Adjacency) -> Tensor:
        """Multiply first, so that sparse rows stay sparse."""
        from khop.kernels.segment import segment_mean

        rows: Tensor = self.linear(x)
        return rows[: adjacency.num_dst] + segment_mean(rows, adjacency.indptr, adjacency.indices)


def test_layers_of_users_take_the_rows(tmp_path: Path) -> None:
    found = []
    for kind in ("sparse", "dense"):
        matrix = sparse.random(9, WORDS, 0.08, format="csr", random_state=2, dtype=np.float32)
        nodes = khop.NodeTable(9, {"x": matrix if kind == "sparse" else matrix.toarray()})
        ids = torch.arange(9)
        edges = {("node", "to", "node"): khop.EdgeTable(ids, (ids + 1) % 9)}
        graph = khop.open_graph(khop.write_graph(tmp_path / kind, {"node": nodes}, edges))
        torch.manual_seed(0)
        width = graph.schema.column("node", "x").sparse_width
        model = models.Sequential([Mean(WORDS), Mean(4)], sparse_width=width)
        batch = khop.Loader(khop.NeighborSampler(graph, [-1, -1]), ids, 9, columns=["x"]).batch(0, 0)
        found.append(model(batch).detach())
        if kind == "sparse":
            with pytest.raises(ValueError, match=r"rows of indices and values: give the width"):
                models.Sequential([Mean(WORDS), Mean(4)])(batch)
    torch.testing.assert_close(found[0], found[1])


def test_embeddings_beside_sparse_rows_need_the_linear_encoder(graphs: list[khop.Graph]) -> None:
    with pytest.raises(ValueError, match=r"column 'x' of 'item' is sparse, .*encoder=\"linear\""):
        models.SAGE.for_graph(graphs[0], 8, 2, target="item", embedding=4, embedded_types="all")
