"""processed/data.pt as torch_geometric writes it becomes what graph_from_pyg makes of the same data."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data, HeteroData, InMemoryDataset

import khop
from khop.importing.sets.pyg_processed import pyg_processed


def saved(path: Path, *data: Data | HeteroData) -> Path:
    InMemoryDataset.save(list(data), str(path))
    return path


def test_a_plain_graph(tmp_path: Path) -> None:
    data = Data(
        x=torch.randn(4, 3, generator=torch.Generator().manual_seed(0)),
        edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 3]]),
        edge_attr=torch.arange(4.0),
        y=torch.tensor([[0], [2], [1], [2]]),
        train_mask=torch.tensor([True, True, False, False]),
        test_mask=torch.tensor([False, False, True, False]),
    )
    pyg_processed(saved(tmp_path / "data.pt", data), "mine").write(tmp_path / "g", None, 1, None)
    graph, other = khop.open_graph(tmp_path / "g"), khop.graph_from_pyg(data)
    edge_type = ("node", "to", "node")
    assert torch.equal(graph.csc(edge_type).indices.long(), other.csc(edge_type).indices.long())
    assert torch.equal(graph.columns["node"]["x"], data.x)
    assert graph.columns["node"]["y"].tolist() == [0, 2, 1, 2]
    assert torch.equal(graph.columns[edge_type]["edge_attr"], other.columns[edge_type]["edge_attr"])
    assert {name: graph.split(name)["node"].tolist() for name in graph.split_names} == {
        "train": [0, 1], "test": [2],
    }  # fmt: skip


def test_a_typed_graph_and_numbers_to_predict(tmp_path: Path) -> None:
    data = HeteroData()
    data["user"].num_nodes = 3
    data["item"].x = torch.ones(2, 2)
    data["item"].y = torch.tensor([0.5, float("nan")])
    data["user", "buys", "item"].edge_index = torch.tensor([[0, 2], [1, 0]])
    data["user", "buys", "item"].time = torch.tensor([5, 6])
    pyg_processed(saved(tmp_path / "data.pt", data), "mine").write(tmp_path / "g", None, 1, None)
    graph = khop.open_graph(tmp_path / "g")
    assert (graph.num_nodes("user"), graph.num_nodes("item")) == (3, 2)
    assert graph.columns["item"]["y"][0] == 0.5
    assert graph.columns[("user", "buys", "item")]["time"].tolist() == [6, 5]  # by destination


def test_several_graphs_and_other_content_are_refused(tmp_path: Path) -> None:
    one = Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]]))
    with pytest.raises(ValueError, match="holds several graphs"):
        pyg_processed(saved(tmp_path / "data.pt", one, one), "mine")
    torch.save([1], tmp_path / "list.pt")
    with pytest.raises(ValueError, match="holds a list, and torch_geometric's to_dict"):
        pyg_processed(tmp_path / "list.pt", "mine")
    torch.save(one, tmp_path / "object.pt")
    with pytest.raises(ValueError, match="may execute code; if you trust it, convert it once"):
        pyg_processed(tmp_path / "object.pt", "mine")
