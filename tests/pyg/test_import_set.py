"""`khop import pyg:NAME`: raw files that are plain arrays, and processed files; pickles are refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData, InMemoryDataset

import khop
from data.formats.layouts import reddit, saint, shchur
from data.formats.server import FileServer
from khop.data.importers import ImportContext, Pyg
from khop.graph.folder import standard_set
from khop.pyg.import_set import PygImporter


def imported(home: Path, name: str, **options: str) -> khop.Graph:
    importer = PygImporter(Pyg(name, **options), ImportContext(home, cache=home / "cache"))
    out = home / f"graph-{len(list(home.iterdir()))}"
    importer.write(out)
    return khop.open_graph(out)


def test_reddit_and_the_sets_of_graphsaint(tmp_path: Path) -> None:
    reddit(tmp_path / "Reddit" / "raw")
    graph = imported(tmp_path, "Reddit", root="Reddit")
    assert graph.num_edges(("node", "to", "node")) == 3  # one was there twice
    assert graph.columns["node"]["y"].tolist() == [0, 2, 1]
    assert graph.split("val")["node"].tolist() == [1]
    saint(tmp_path / "raw")
    assert imported(tmp_path, "Flickr", root=".").columns["node"]["y"].tolist() == [1, -1, 0]
    (tmp_path / "raw" / "role.json").unlink()
    with pytest.raises(ValueError, match=r"role.json: no such file"):
        imported(tmp_path, "Yelp", root=".")


def test_several_answers(tmp_path: Path) -> None:
    saint(tmp_path / "raw", "answers")
    graph = imported(tmp_path, "Yelp", root=".")
    assert graph.columns["node"]["y"].dtype == torch.uint8
    assert graph.columns["node"]["y"].tolist() == [[0, 1], [1, 1], [1, 0]]
    assert {name: graph.split(name)["node"].tolist() for name in graph.split_names} == {
        "train": [0], "val": [1], "test": [2],
    }  # fmt: skip
    assert graph.folder is not None
    assert standard_set(graph.folder)["labels"] == {"node": "multi-label"}


def test_arrays_of_objects_are_refused(tmp_path: Path) -> None:
    shchur(tmp_path / "ms_academic_cs.npz")
    arrays = dict(np.load(tmp_path / "ms_academic_cs.npz", allow_pickle=True))
    np.savez(tmp_path / "ms_academic_cs.npz", **(arrays | {"labels": np.array([0, None, 1], object)}))
    with pytest.raises(ValueError, match="array labels: has Python objects"):
        imported(tmp_path, "Coauthor-CS", root=".")


def test_a_plain_file_and_an_archive_come_from_a_server(tmp_path: Path) -> None:
    shchur(tmp_path / "served" / "amazon_electronics_photo.npz")
    reddit(tmp_path / "files")
    shutil.make_archive(str(tmp_path / "served" / "reddit"), "zip", tmp_path / "files")
    with FileServer(tmp_path / "served") as server:
        photo = imported(tmp_path, "Amazon-Photo", mirror=server.url)
        assert imported(tmp_path, "Reddit", mirror=server.url).num_nodes("node") == 3
    assert photo.columns["node"]["x"].tolist() == [[1, 0], [0, 1], [0, 0]]
    assert photo.num_edges(("node", "to", "node")) == 2  # both directions, no loop


def test_a_processed_folder_of_torch_geometric(tmp_path: Path) -> None:
    data = Data(x=torch.ones(3, 2), edge_index=torch.tensor([[0, 1], [1, 2]]), y=torch.tensor([0, 1, -1]))
    (tmp_path / "mine" / "processed").mkdir(parents=True)
    InMemoryDataset.save([data], str(tmp_path / "mine" / "processed" / "data.pt"))
    graph = imported(tmp_path, "mine")
    assert graph.schema.columns["node"]["y"].num_classes == 2


def test_planetoid_and_unknown_sets_name_the_line_that_converts(tmp_path: Path) -> None:
    (tmp_path / "Cora" / "raw").mkdir(parents=True)
    (tmp_path / "Cora" / "raw" / "ind.cora.x").write_bytes(b"\x80\x02")
    with pytest.raises(
        ValueError, match="raw files of Planetoid are pickles, and reading them may execute code"
    ):
        imported(tmp_path, "Cora", root=".")
    with pytest.raises(ValueError, match=r"pyg:Yelp: khop downloads Reddit.*give --root.*graph_from_pyg"):
        imported(tmp_path, "Yelp")
    with pytest.raises(ValueError, match=r"has neither processed/data.pt nor raw files of Other"):
        imported(tmp_path, "Other", root=".")
    assert np.all([not path.name.startswith("graph") for path in tmp_path.iterdir()])


def saved(path: Path, *data: Data | HeteroData) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
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
    saved(tmp_path / "mine" / "processed" / "data.pt", data)
    graph, other = imported(tmp_path, "mine"), khop.graph_from_pyg(data)
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
    saved(tmp_path / "mine" / "processed" / "data.pt", data)
    graph = imported(tmp_path, "mine")
    assert (graph.num_nodes("user"), graph.num_nodes("item")) == (3, 2)
    assert graph.columns["item"]["y"][0] == 0.5
    assert graph.columns[("user", "buys", "item")]["time"].tolist() == [6, 5]  # by destination


def test_several_graphs_and_other_content_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine" / "processed" / "data.pt"
    one = Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]]))
    saved(path, one, one)
    with pytest.raises(ValueError, match="contains several graphs"):
        imported(tmp_path, "mine")
    torch.save([1], path)
    with pytest.raises(ValueError, match="contains a list, but the result of torch_geometric's to_dict"):
        imported(tmp_path, "mine")
    torch.save(one, path)
    with pytest.raises(ValueError, match="may execute code; if you trust it, convert it once"):
        imported(tmp_path, "mine")
