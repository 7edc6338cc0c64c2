"""`khop import edges:FILE`: edge lists and GraphML through one reader."""

from __future__ import annotations

from pathlib import Path

import pytest

import khop
from khop.datasets.importers import ImportContext
from khop.importing.sets.edge_file import edge_file_importer
from khop.importing.sets.options import EdgeFileOptions

EDGE, BACK = ("node", "to", "node"), ("node", "rev_to", "node")
XML = """<?xml version="1.0" encoding="UTF-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
  <key id="d0" for="edge" attr.name="weight" attr.type="double"/>
  <graph edgedefault="undirected">
    <node id="ann"/><node id="bob"/><node id="eve"/>
    <edge source="ann" target="bob"><data key="d0">0.5</data></edge>
    <edge source="bob" target="eve"><data key="d0">1.5</data></edge>
  </graph>
</graphml>
"""


def test_both_formats_give_the_same_graph(tmp_path: Path) -> None:
    (tmp_path / "a.graphml").write_text(XML)
    (tmp_path / "a.txt").write_text("# who knows whom\nann\tbob\t0.5\nbob\teve\t1.5\n")
    for name, undirected in (("a.graphml", False), ("a.txt", True)):
        importer = edge_file_importer(EdgeFileOptions(name, undirected), ImportContext(tmp_path))
        assert importer.name == "a"
        assert importer.write(tmp_path / f"{name}-out") == "3 node"
        graph = khop.open_graph(tmp_path / f"{name}-out")
        assert graph.schema.reverse(EDGE) == BACK
        assert graph.csc(EDGE).indices.tolist() == [0, 1]
        assert graph.csc(EDGE).destinations().tolist() == [1, 2]
        assert graph.columns[BACK]["weight"].tolist() == [0.5, 1.5]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="b.txt: no such file; give an edge list or a GraphML file"):
        edge_file_importer(EdgeFileOptions("b.txt"), ImportContext(tmp_path)).write(tmp_path / "out")
