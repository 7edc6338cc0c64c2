"""The perceptron over columns is torch's, reads its columns side by side, and follows no edges."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import khop


def graph_of(folder: Path) -> khop.Graph:
    generator = torch.Generator().manual_seed(0)
    columns = {
        "x": torch.randn(40, 4, generator=generator),
        "x_1": torch.randn(40, 3, generator=generator).half(),
        "x_2": torch.randn(40, generator=generator),
        "y": torch.randint(3, (40,), generator=generator),
    }
    splits = {"train": torch.arange(30), "val": torch.arange(30, 35), "test": torch.arange(35, 40)}
    ends = torch.randint(40, (2, 90), generator=generator)
    nodes = {"item": khop.NodeTable(columns=columns, num_classes={"y": 3}, splits=splits)}
    return khop.open_graph(khop.write_graph(folder, nodes, {"item to item": khop.EdgeTable(*ends)}))


def test_it_is_a_perceptron_over_the_columns_side_by_side(tmp_path: Path) -> None:
    graph = graph_of(tmp_path / "g")
    model = khop.models.ColumnMLP.for_graph(graph, hidden=5, concat=["x_1", "x_2"])
    columns = graph.columns["item"]
    rows = torch.cat([columns["x"], columns["x_1"].float(), columns["x_2"][:, None]], 1)
    plain = nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 3))
    plain.load_state_dict(dict(zip(plain.state_dict(), _in_order(model), strict=True)))
    exact = khop.layerwise_inference(model, graph, graph.features, "item")
    torch.testing.assert_close(exact, plain(rows).detach())
    sampler = khop.NeighborSampler(graph, [0, 0])
    loader = khop.Loader(sampler, torch.arange(40), 40, columns=["x", "x_1", "x_2"])
    torch.testing.assert_close(model(loader.batch(0, 0)).detach(), plain(rows).detach())


def _in_order(model: nn.Module) -> list[torch.Tensor]:
    """Weight and bias of each layer, then of the head."""
    state = model.state_dict()
    layers = [state[f"layers.{n}.weights.{part}.node:item"] for n in range(2) for part in ("own", "bias")]
    return [*layers, state["heads.node:item.weight"], state["heads.node:item.bias"]]


@pytest.mark.parametrize("concat", [["z"], ["x"], ["x_1", "x_1"]])
def test_columns_that_are_not_there_or_twice_are_refused(tmp_path: Path, concat: list[str]) -> None:
    with pytest.raises(ValueError, match="must be columns of 'item' besides 'x'"):
        khop.models.ColumnMLP.for_graph(graph_of(tmp_path / "g"), concat=concat)
