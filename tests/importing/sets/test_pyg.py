"""`khop import pyg:NAME`: raw files that are plain arrays, and processed files; pickles are refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, InMemoryDataset

import khop
from importing.sets.layouts import reddit, saint, shchur
from importing.sets.server import FileServer
from khop.datasets.importers import ImportContext
from khop.importing.sets.options import PygOptions
from khop.importing.sets.pyg import pyg_importer


def imported(home: Path, name: str, **options: str) -> khop.Graph:
    importer = pyg_importer(PygOptions(name, **options), ImportContext(home, cache=home / "cache"))
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
    with pytest.raises(ValueError, match="pyg:Yelp: khop downloads Reddit.*give --root.*graph_from_pyg"):
        imported(tmp_path, "Yelp")
    with pytest.raises(ValueError, match=r"has neither processed/data.pt nor raw files of Other"):
        imported(tmp_path, "Other", root=".")
    assert np.all([not path.name.startswith("graph") for path in tmp_path.iterdir()])
