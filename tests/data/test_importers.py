"""khop's importers are loaded by kind, and build what the protocol of importers asks for.

Names and folders of built-in graphs, known without torch, are those of the graphs.
"""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from khop.data.builtin import builtin_folder, builtin_names
from khop.data.importers import BUILTIN_NAMES, IMPORTERS, ImportContext, Importer, builtin_path, graph_name

NAMES = {
    "ogb": "ogbn-arxiv",
    "pyg": "Reddit",
    "igb": "tiny",
    "dgl": "folder",
    "movielens": "ml-1m",
    "relbench": "rel-f1",
    "edges": "a.txt",
}  # of kinds that import several sets


@pytest.mark.parametrize("kind", IMPORTERS.builtin)
def test_an_importer_has_a_name_and_writes(kind: str, tmp_path: Path) -> None:
    component = IMPORTERS.load(kind)
    options = component.options(**({"name": NAMES[kind]} if kind in NAMES else {}))
    importer = component.build(options, ImportContext(tmp_path))
    assert isinstance(importer.name, str)
    own = inspect.signature(importer.write)
    assert list(own.parameters) == list(inspect.signature(Importer.write).parameters)[1:]


def test_names_are_those_of_the_graphs() -> None:
    assert tuple(builtin_names()) == BUILTIN_NAMES


@pytest.mark.long
def test_a_graph_that_is_there_already_is_found_at_its_path(tmp_path: Path) -> None:
    paths = {builtin_path(name, tmp_path) for name in BUILTIN_NAMES}
    assert len(paths) == len(BUILTIN_NAMES)
    assert {path.parent for path in paths} == {tmp_path}
    folder = builtin_folder("debian", tmp_path)
    assert folder == builtin_path("debian", tmp_path)
    assert (folder / "graph.json").exists()


def test_the_folder_of_a_graph_in_a_cache_has_the_name_of_the_graph(tmp_path: Path) -> None:
    for name in BUILTIN_NAMES:
        assert graph_name(builtin_path(name, tmp_path)) == name
    assert graph_name(tmp_path / "shop") == "shop"
