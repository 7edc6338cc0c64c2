"""GraphML: nodes, edges and numbers; anything else is refused or left out."""

from __future__ import annotations

from pathlib import Path

import networkx
import pytest

from khop.importing.sets.graphml import graphml

HEAD = '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">'


def test_a_file_of_networkx(tmp_path: Path) -> None:
    graph = networkx.DiGraph()
    graph.add_node("ann", age=31, club="x", active=True)
    graph.add_node("bob", age=45, active=False)
    graph.add_edge("bob", "ann", weight=0.5)
    networkx.write_graphml(graph, tmp_path / "a.graphml")
    found = graphml(tmp_path / "a.graphml")
    assert found.ids.strings() == ["ann", "bob"]  # type: ignore[union-attr]
    assert (found.sources.tolist(), found.destinations.tolist(), found.direction) == ([1], [0], "directed")
    assert found.node_columns["age"].tolist() == [31, 45]
    assert found.node_columns["active"].tolist() == [1, 0]
    assert "club" not in found.node_columns  # text, and bob has none
    assert found.edge_columns["weight"].tolist() == [0.5]


def test_defaults(tmp_path: Path) -> None:
    (tmp_path / "a.graphml").write_text(
        f'{HEAD}<key id="k" for="node" attr.name="n" attr.type="int"><default>7</default></key>'
        '<graph edgedefault="directed"><node id="a"/><node id="b"><data key="k">8</data></node></graph></graphml>'
    )
    found = graphml(tmp_path / "a.graphml").node_columns["n"]
    assert found.tolist() == [7, 8]


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ('<graph><node id="a"/><edge source="a" target="b"/></graph>', "edge 1: no node has the id 'b'"),
        ('<graph><node id="a"/><node id="a"/></graph>', "line 1: has a node with the id 'a'"),
        ('<graph><node id="a"><graph/></node></graph>', "has a second or nested graph"),
        ("<graph><hyperedge/></graph>", "has a hyperedge"),
        (
            '<graph><node id="a"/><edge directed="false" source="a" target="a"/></graph>',
            "of another direction",
        ),
        ("<graph>", "cannot be read"),
    ],
)
def test_other_content_is_refused(body: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "a.graphml").write_text(f"{HEAD}{body}</graphml>")
    with pytest.raises(ValueError, match=sentence):
        graphml(tmp_path / "a.graphml")


def test_entities_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.graphml").write_text(
        '<!DOCTYPE graphml [<!ENTITY a "aaaaaaaa"><!ENTITY b "&a;&a;">]><graphml><graph/></graphml>'
    )
    with pytest.raises(ValueError, match="has an entity, and a plain graph is expected"):
        graphml(tmp_path / "a.graphml")
