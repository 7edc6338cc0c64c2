"""khop's importers are loaded by kind, and build what the protocol of importers asks for."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from khop.datasets.importers import IMPORTERS, ImportContext, Importer

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
