"""`khop import ogb:NAME`: importers of OGB's sets, from folders and from a server."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import khop
from data.formats.layouts import arxiv
from data.formats.server import FileServer
from khop.data.formats.ogb import ogb_importer
from khop.data.importers import ImportContext, OgbOptions


@pytest.mark.parametrize("place", [".", "arxiv", "ogbn_arxiv"])
def test_the_folder_of_a_set_is_found_where_it_is_unpacked(place: str, tmp_path: Path) -> None:
    made = arxiv(tmp_path / "published")
    root = tmp_path / "root"
    shutil.copytree(made, root / place)
    importer = ogb_importer(OgbOptions("ogbn-arxiv", root="root"), ImportContext(tmp_path))
    assert importer.name == "ogbn-arxiv"
    assert importer.write(tmp_path / "out") == "5 node; 4 node to node"
    assert khop.open_graph(tmp_path / "out").num_edges(("node", "to", "node")) == 4


def test_a_set_comes_from_a_server_once(tmp_path: Path) -> None:
    arxiv(tmp_path / "published")
    shutil.make_archive(str(tmp_path / "served" / "arxiv"), "zip", tmp_path / "published")
    context = ImportContext(tmp_path, cache=tmp_path / "cache")
    with FileServer(tmp_path / "served") as server:
        importer = ogb_importer(OgbOptions("ogbn-arxiv", mirror=server.url), context)
        importer.write(tmp_path / "one")
    importer.write(tmp_path / "two")  # the server is gone
    assert khop.open_graph(tmp_path / "one").schema == khop.open_graph(tmp_path / "two").schema
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "one", "published", "served", "two"]


def test_an_unknown_set_and_a_wrong_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="ogb:ogbn-arxivs: no such node or link set; did you mean ogbn-arxiv"
    ):
        ogb_importer(OgbOptions("ogbn-arxivs"), ImportContext(tmp_path))
    importer = ogb_importer(OgbOptions("ogbn-arxiv", root="."), ImportContext(tmp_path))
    with pytest.raises(ValueError, match="has none of raw, arxiv/raw, ogbn_arxiv/raw, .*arxiv.zip"):
        importer.write(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
