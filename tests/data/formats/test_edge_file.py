"""`khop import edges:FILE`: files of graphs in all formats through one importer.

Edge lists: ids as they stand, in files of all forms.
"""

from __future__ import annotations

import codecs
import gzip
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import networkx
import numpy as np
import pytest
import scipy.io
import scipy.sparse
import torch

import khop
from khop.data.formats.edge_file import Header, ReadEdges, _elements, edge_file_importer, edge_list
from khop.data.importers import EdgeFile, ImportContext
from khop.kernels.id_table import StringKeys

EDGE, BACK = ("node", "to", "node"), ("node", "rev_to", "node")
HEAD = '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">'
GRAPH_OF = (
    f'{HEAD}<key id="k" for="node" attr.name="k" attr.type="double"/><graph edgedefault="directed">'
    '<node id="a">%s</node></graph></graphml>'
)
WRITERS: dict[str, Callable[..., None]] = {
    "graphml": networkx.write_graphml,
    "gml": networkx.write_gml,
    "gexf": networkx.write_gexf,
    "net": networkx.write_pajek,
}


def imported(path: Path, *, undirected: bool = False) -> tuple[khop.Graph, list[str]]:
    """Return the graph of a file, and what the import says."""
    importer = edge_file_importer(EdgeFile(path.name, undirected), ImportContext(path.parent))
    out = path.parent / f"{path.name}-out"
    said = importer.write(out).split("\n")
    return khop.open_graph(out), said


def edges_of(graph: khop.Graph) -> list[tuple[int, int]]:
    csc = graph.csc(EDGE)
    return sorted(zip(csc.indices.tolist(), csc.destinations().tolist(), strict=True))


@pytest.mark.core(2)
@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize("kind", [networkx.Graph, networkx.DiGraph])
def test_what_networkx_writes(kind: type[networkx.Graph], suffix: str, tmp_path: Path) -> None:
    graph = kind()
    graph.add_node("ann", age=31, club="x")
    graph.add_node("bob", age=45, club="y")
    graph.add_node("eve", age=27, club="y")
    graph.add_edge("ann", "bob", weight=0.5)
    graph.add_edge("bob", "eve", weight=1.5)
    if suffix == "net":
        for _, given in graph.nodes(data=True):
            given["age"] = str(given["age"])
    path = tmp_path / f"a.{suffix}"
    WRITERS[suffix](graph, path)
    found, said = imported(path)
    assert said[0].startswith("3 node; 2 node to node")
    assert any("attribute 'club' of nodes is omitted: it has text" in note for note in said)
    assert edges_of(found) == [(0, 1), (1, 2)]
    assert found.columns["node"]["age"].tolist() == [31, 45, 27]
    assert found.columns[EDGE]["weight"].tolist() == [0.5, 1.5]
    assert (found.schema.reverse(EDGE) == BACK) == (kind is networkx.Graph)
    path.with_name(f"b.{suffix}.gz").write_bytes(gzip.compress(path.read_bytes()))
    again, _ = imported(path.with_name(f"b.{suffix}.gz"))
    assert edges_of(again) == edges_of(found)


@pytest.mark.parametrize("suffix", ["graphml", "gexf", "gml"])
def test_missing_numbers(suffix: str, tmp_path: Path) -> None:
    graph = networkx.DiGraph()
    graph.add_node("ann", age=31)
    graph.add_node("bob")
    graph.add_edge("ann", "bob", weight=3.0, size=4.0)
    graph.add_edge("bob", "ann")
    WRITERS[suffix](graph, tmp_path / f"a.{suffix}")
    found, said = imported(tmp_path / f"a.{suffix}")
    assert np.isnan(found.columns["node"]["age"].numpy()).tolist() == [False, True]
    assert "attribute 'age': 1 of 2 nodes have no number; they get NaN" in said
    order = found.csc(EDGE).destinations().tolist()  # edges lie by destination
    columns = {
        name: [column.tolist()[order.index(end)] for end in (1, 0)]
        for name, column in found.columns[EDGE].items()
    }
    assert columns["weight"] == [3, 1]
    assert (columns["size"], columns["size_missing"]) == ([4, 0], [0, 1])
    assert "attribute 'weight': 1 of 2 edges have no number; they get 1" in said
    assert khop.open_graph(tmp_path / f"a.{suffix}-out").num_nodes("node") == 2


def graphml(folder: Path, keys: str, body: str, direction: str = "directed") -> Path:
    path = folder / "a.graphml"
    path.write_text(f'{HEAD}{keys}<graph edgedefault="{direction}">{body}</graph></graphml>')
    return path


def test_two_keys_of_one_name(tmp_path: Path) -> None:
    keys = "".join(f'<key id="d{at}" for="node" attr.name="score" attr.type="int"/>' for at in range(2))
    data = '<data key="d0">1</data><data key="d1">2</data>'
    found, said = imported(graphml(tmp_path, keys, f'<node id="a">{data}</node>'))
    assert {name: column.tolist() for name, column in found.columns["node"].items()} == {
        "score": [1], "score_d1": [2],
    }  # fmt: skip
    assert "key 'd1' has the name 'score' of another: it is 'score_d1'" in said


def test_integers_and_floats_of_one_attribute(tmp_path: Path) -> None:
    """NetworkX writes them as two keys with one name."""
    graph = networkx.DiGraph()
    graph.add_node("a", age=3)
    graph.add_node("b", age=4.5)
    graph.add_edge("a", "b", weight=2.5)
    graph.add_edge("b", "a", weight=7)
    networkx.write_graphml(graph, tmp_path / "a.graphml")
    found, said = imported(tmp_path / "a.graphml")
    assert found.columns["node"]["age"].tolist() == [3, 4.5]
    assert dict(zip(found.csc(EDGE).indices.tolist(), found.columns[EDGE]["weight"].tolist(), strict=True)) == {
        0: 2.5, 1: 7,
    }  # fmt: skip
    assert len(said) == 1


def test_text_and_numbers_of_one_name_are_two_columns(tmp_path: Path) -> None:
    keys = '<key id="d0" for="all" attr.name="v" attr.type="string"/>'
    keys += '<key id="d1" for="node" attr.name="v" attr.type="double"/>'
    body = '<node id="a"><data key="d0">x</data></node><node id="b"><data key="d1">2</data></node>'
    found, _ = imported(graphml(tmp_path, keys, body))
    assert list(found.columns["node"]) == ["v_d1"]


def test_empty_data_are_missing(tmp_path: Path) -> None:
    keys = '<key id="k" for="node" attr.name="k" attr.type="long"/>'
    body = '<node id="a"><data key="k">5</data></node><node id="b"><data key="k"></data></node>'
    found, said = imported(graphml(tmp_path, keys, body))
    assert found.columns["node"]["k"].tolist()[0] == 5
    assert "attribute 'k': 1 of 2 nodes have no number; they get NaN" in said


def test_elements_of_other_namespaces_are_no_nodes_or_edges(tmp_path: Path) -> None:
    """As yEd writes shapes within data."""
    keys = '<key id="y" for="node" yfiles.type="nodegraphics"/><key id="k" for="node" attr.name="k" attr.type="int"/>'
    shapes = '<data key="y"><y:ShapeNode><y:graph/><y:node/><y:edge/></y:ShapeNode></data>\n'
    body = f'<node id="a">{shapes}</node><node id="b">{shapes}<data key="k">%s</data></node>'
    path = tmp_path / "a.graphml"
    text = (
        f'{HEAD[:-1]} xmlns:y="http://www.yworks.com/xml/graphml">{keys}<graph edgedefault="directed">{body}'
    )
    path.write_text(text % 3 + '<edge source="a" target="b"/></graph></graphml>')
    found, _ = imported(path)
    assert (edges_of(found), found.columns["node"]["k"].tolist()[1:]) == ([(0, 1)], [3])
    wrong = tmp_path / "b.graphml"
    wrong.write_text(text % "three" + "</graph></graphml>")
    with pytest.raises(ValueError, match="line 3: the value 'three'"):
        imported(wrong)


@pytest.mark.long
def test_memory_of_checks_does_not_grow_with_attributes() -> None:
    def peak(data: int) -> int:
        within = '<data key="k">1</data>' * data
        nodes = "".join(f'<node id="{at}">{within}</node>' for at in range(3000))
        content = f'{HEAD}<graph edgedefault="directed">{nodes}</graph></graphml>'.encode()
        tracemalloc.start()
        assert len(_elements(content).nodes) == 3000
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    assert peak(20) - peak(0) < 2 << 20  # expat copies up to 1 MiB


def test_gexf_with_times(tmp_path: Path) -> None:
    (tmp_path / "a.gexf").write_text(
        '<gexf xmlns="http://www.gexf.net/1.2draft" version="1.2"><graph mode="dynamic" defaultedgetype="directed">'
        '<nodes><node id="0" start="1.0"/><node id="1"/></nodes><edges><edge id="0" source="0" target="1" '
        'start="2"/></edges></graph></gexf>'
    )
    assert edges_of(imported(tmp_path / "a.gexf")[0]) == [(0, 1)]


def test_gexf_as_gephi_0_9_writes_it(tmp_path: Path) -> None:
    space = "http://www.gexf.net/1.3"
    (tmp_path / "a.gexf").write_text(
        f'<gexf xmlns="{space}" version="1.3" xmlns:viz="{space}/viz"><graph defaultedgetype="directed">'
        '<attributes class="node"><attribute id="0" title="age" type="integer"/></attributes><nodes>'
        '<node id="a" label="A"><attvalues><attvalue for="0" value="3"/></attvalues><viz:size value="1"/></node>'
        '<node id="b" label="B"/></nodes><edges><edge id="0" source="a" target="b" weight="2.0"/></edges>'
        "</graph></gexf>"
    )
    found, _ = imported(tmp_path / "a.gexf")
    assert (edges_of(found), found.columns[EDGE]["weight"].tolist()) == ([(0, 1)], [2])
    assert found.columns["node"]["age"].tolist()[0] == 3


def test_defaults_booleans_and_large_numbers(tmp_path: Path) -> None:
    keys = (
        '<key id="k" for="node" attr.name="n" attr.type="int"><default>7</default></key>'
        '<key id="b" for="node" attr.name="is on" attr.type="boolean"/>'
        '<key id="l" for="node" attr.name="large" attr.type="long"/>'
        '<key id="t" for="node" attr.name="time" attr.type="double"/>'
    )
    data = (
        '<data key="b">true</data><data key="l">1180591620717411303424</data><data key="t">1700000001</data>'
    )
    body = f'<node id="007">{data}</node><node id="8"><data key="k">8</data>{data}</node>'
    found, said = imported(graphml(tmp_path, keys, body))
    columns = {name: column.tolist() for name, column in found.columns["node"].items()}
    assert columns == {"n": [7, 8], "is_on": [1, 1], "large": [2.0**70] * 2, "time": [1700000001.0] * 2}
    assert "attribute 'is on' is column 'is_on'" in said


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ('<node id="a"/><edge source="a" target="b"/>', "1 nodes of edges are not declared"),
        ('<node id="a"/><node id="a"/>', "two nodes are named 'a'"),
        ('<node id="a"><graph edgedefault="directed"/></node>', "several or nested graphs"),
        (
            '<node id="a"/><edge directed="false" source="a" target="a"/>',
            "it has directed and undirected edges",
        ),
        (
            "<node id='a'/>" + "<edge id='1' source='a' target='a'/>" * 2,
            "1 edges have the id of another edge",
        ),
        ('<node id="1"/>\n<node/>', "line 2: the node has no id; add it"),
    ],
)
def test_other_graphml_is_refused(body: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=sentence):
        imported(graphml(tmp_path, "", body))


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ("<data>1</data>", "line 4: it has data of the key None, which is not declared; declare it"),
        ('<data key="k"> </data>', "line 4: the value ' ' in .* is not valid in the format"),
    ],
)
def test_data_are_named_by_the_line_of_their_element(data: str, sentence: str, tmp_path: Path) -> None:
    key = '<key id="k" for="node" attr.name="ok" attr.type="boolean"/>'
    body = f'<node id="1"/>\n<!-- a\nb -->\n<node id="2">{data}</node>'
    with pytest.raises(ValueError, match=sentence):
        imported(graphml(tmp_path, key, body))


def test_numbers_that_floats_do_not_hold_are_counted(tmp_path: Path) -> None:
    keys = "".join(f'<key id="{n}" for="node" attr.name="{n}" attr.type="long"/>' for n in "abc")
    large = (
        f'<data key="a">{2**53 + 1}</data><data key="b">{2**63 + 1}</data><data key="c">{2**53 + 1}</data>'
    )
    body = f'<node id="1">{large}</node><node id="2"><data key="b">1</data><data key="c">1</data></node>'
    found, said = imported(graphml(tmp_path, keys, body))
    assert found.columns["node"]["c"].tolist() == [2**53 + 1, 1]
    rounded = [f"attribute {name!r}: 1 whole numbers beyond 2**53 are rounded" for name in "ab"]
    assert [note for note in said if "rounded" in note] == rounded


def test_a_mark_of_missing_values_replaces_no_attribute(tmp_path: Path) -> None:
    keys = "".join(f'<key id="{n}" for="edge" attr.name="{n}" attr.type="int"/>' for n in ("c", "c_missing"))
    edges = (
        '<edge source="a" target="b"><data key="c">7</data><data key="c_missing">9</data></edge>'
        '<edge source="b" target="a"><data key="c_missing">5</data></edge>'
    )
    found, said = imported(graphml(tmp_path, keys, f'<node id="a"/><node id="b"/>{edges}'))
    columns = {name: column.tolist() for name, column in found.columns[EDGE].items()}
    assert columns == {"c": [0, 7], "c_missing": [5, 9], "c_missing.2": [1, 0]}  # by destination
    assert "attribute 'c': 1 of 2 edges have no number; they get 0, and 1 in c_missing.2" in said


def test_an_attribute_keys_no_draws(tmp_path: Path) -> None:
    key = '<key id="o" for="node" attr.name="original_id" attr.type="int"/>'
    nodes = "".join(f'<node id="{n}"><data key="o">4</data></node>' for n in "ab")
    found, said = imported(graphml(tmp_path, key, nodes))
    assert found.columns["node"]["original_id.2"].tolist() == [4, 4]
    assert "attribute 'original_id' is column 'original_id.2'" in said


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "latin-1"])
def test_xml_in_other_encodings(encoding: str, tmp_path: Path) -> None:
    declared = encoding.removesuffix("-le")
    body = '<graph edgedefault="directed"><node id="é"/><node id="b"/><edge source="é" target="b"/></graph>'
    text = f'<?xml version="1.0" encoding="{declared}"?>\n{HEAD}{body}</graphml>'
    start = codecs.BOM_UTF16_LE if encoding == "utf-16-le" else b""
    (tmp_path / "a.graphml").write_bytes(start + text.encode(encoding))
    found, _ = imported(tmp_path / "a.graphml")
    assert edges_of(found) == [(0, 1)]


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        (
            "a.graphml",
            GRAPH_OF % "<data key='k'>INF</data>",
            "attribute 'k' of node a is infinite; correct it",
        ),
        (
            "a.graphml",
            GRAPH_OF % "<data key='z'>1</data>",
            "line 1: it has data of the key z, which is not declared; declare it",
        ),
        (
            "a.gexf",
            '<gexf xmlns="http://www.gexf.net/1.2draft" version="1.2"><graph defaultedgetype="undirected"><nodes>'
            '<node id="0"/><node id="1"/></nodes><edges><edge id="0" source="0" target="1"/><edge id="1" source="1"'
            ' target="0" type="directed"/></edges></graph></gexf>',
            "it has directed and undirected edges; write all of them directed",
        ),
        ("a.net", "*Vertices 2\n1 a\n3 b\n*Arcs\n1 2\n", "'3 b': numbers of vertices are 1 to 2, each once"),
        ("a.net", "*Vertices 2\n1 a\n1 b\n*Arcs\n1 2\n", "'1 b': numbers of vertices are 1 to 2, each once"),
    ],
)
def test_graphs_that_are_not_complete_are_refused(
    name: str, text: str, sentence: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=f"{name}.*{sentence}"):
        imported(tmp_path / name)


def test_entities_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.graphml"
    path.write_text(
        f'<!DOCTYPE graphml [<!ENTITY a "aaaaaaaa"><!ENTITY b "&a;&a;">]>{HEAD}<graph/></graphml>'
    )
    with pytest.raises(ValueError, match="declares an entity"):
        imported(path)


def test_gml_without_labels(tmp_path: Path) -> None:
    (tmp_path / "a.gml").write_text(
        "graph [ node [ id 3 value 1 ] node [ id 5 value 2 ] edge [ source 3 target 5 ] ]"
    )
    found, said = imported(tmp_path / "a.gml")
    assert found.columns["node"]["value"].tolist() == [1, 2]
    assert said[1].startswith("labels of nodes are missing or not distinct")


PAJEK = '*Network x\n*Vertices 3\n1 "a b"\n2 c\n3 d\n% more\n'


def test_arcs_beside_edges(tmp_path: Path) -> None:
    (tmp_path / "a.net").write_text(PAJEK + "*Arcs\n1 2 0.5\n*Edges\n2 3 2\n")
    found, said = imported(tmp_path / "a.net")
    assert edges_of(found) == [(0, 1), (1, 2), (2, 1)]
    assert said[1:] == ["the file has arcs and 1 edges: each edge is two arcs"]
    (tmp_path / "b.net").write_text(PAJEK + "*Arcs\n*Edges\n2 3 2\n")
    assert imported(tmp_path / "b.net")[0].schema.reverse(EDGE) == BACK


def test_a_matrix_beside_arcs_or_edges_is_directed(tmp_path: Path) -> None:
    matrix = "*Matrix\n0 3 0\n0 0 0\n0 0 0\n"
    (tmp_path / "arcs.net").write_text(PAJEK + "*Arcs\n2 3 2\n" + matrix)
    found, said = imported(tmp_path / "arcs.net")
    assert (edges_of(found), said[1:]) == ([(0, 1), (1, 2)], [])
    (tmp_path / "edges.net").write_text(PAJEK + "*Edges\n1 2 2\n2 3 2\n" + matrix)
    found, said = imported(tmp_path / "edges.net")
    assert found.schema.edge_types == (EDGE,)
    assert edges_of(found) == [(0, 1), (0, 1), (1, 0), (1, 2), (2, 1)]
    assert said[1:] == ["the file has arcs and 2 edges: each edge is two arcs"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.net", PAJEK + '*Arcs\n1 2 {} l "x y"\n2 3 {}\n'),
        ("a.mtx", "%%MatrixMarket matrix coordinate integer general\n3 3 2\n1 2 {}\n2 3 {}\n"),
    ],
)
def test_whole_numbers_are_those_of_the_file(name: str, content: str, tmp_path: Path) -> None:
    large = [2**53 + 1, -(2**53) - 1]
    (tmp_path / name).write_text(content.format(*large))
    found, said = imported(tmp_path / name)
    assert (edges_of(found), found.columns[EDGE]["weight"].tolist()) == ([(0, 1), (1, 2)], large)
    assert not [note for note in said if "round" in note]


def test_times_with_fractions_are_exact(tmp_path: Path) -> None:
    times = {"t": [1700000000.25, 1700000001.5], "s": [4096.00001, 4096.00002], "x": [0.1, 0.2]}
    graph = networkx.DiGraph()
    for at in range(2):
        graph.add_node(at, **{name: values[at] for name, values in times.items()})
    networkx.write_graphml(graph, tmp_path / "a.graphml")
    found = imported(tmp_path / "a.graphml")[0].columns["node"]
    assert found["t"].tolist() == times["t"]
    assert {found[name].dtype for name in "sx"} == {torch.float32}
    (tmp_path / "a.mtx").write_text(
        "%%MatrixMarket matrix coordinate real general\n2 2 2\n1 2 1700000000.25\n2 1 1700000001.5\n"
    )
    (tmp_path / "a.txt").write_text("a b 1700000001.5\nb a 1700000000.25\n")
    for name in ("a.mtx", "a.txt"):
        assert sorted(imported(tmp_path / name)[0].columns[EDGE]["weight"].tolist()) == times["t"]


def test_vertices_without_names_have_their_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.net").write_text("*Vertices 4\n2 b [1-3]\n3\n*Arcs\n1 2\n2 3\n4 1\n")
    found, said = imported(tmp_path / "a.net")
    assert edges_of(found) == [(0, 1), (1, 2), (3, 0)]
    assert "3 vertices have no name: their ids are their numbers" in said
    assert "times in brackets are omitted" in said


def test_relations_of_pajek_are_edges_of_one_type(tmp_path: Path) -> None:
    (tmp_path / "a.net").write_text(PAJEK + '*Arcs :1 "likes"\n1 2 0.5\n*Arcs :2 "knows"\n2 3 2\n')
    found, said = imported(tmp_path / "a.net")
    assert edges_of(found) == [(0, 1), (1, 2)]
    assert said[1:] == ["""line 9: '*Arcs :2 "knows"': the edges of its relation are not kept apart"""]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (PAJEK.replace("3 d", "3 c"), "two nodes are named 'c'"),
        (PAJEK.replace("*Vertices 3", "*Vertices 3 1"), "two-mode networks are not read"),
    ],
)
def test_other_pajek_is_refused(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "a.net").write_text(text)
    with pytest.raises(ValueError, match=sentence):
        imported(tmp_path / "a.net")


@pytest.mark.parametrize("name", ["a.mtx", "a.txt", "a.mtx.gz"])
@pytest.mark.parametrize("symmetry", ["general", "symmetric"])
def test_matrix_market(symmetry: str, name: str, tmp_path: Path) -> None:
    entries = {"general": [(0, 1), (1, 2)], "symmetric": [(0, 1), (1, 0), (1, 2), (2, 1)]}[symmetry]
    rows, columns = zip(*entries, strict=True)
    matrix = scipy.sparse.coo_array((np.full(len(rows), 2.5), (rows, columns)), (4, 4))
    scipy.io.mmwrite(tmp_path / "whole.mtx", matrix, symmetry=symmetry)
    content = (tmp_path / "whole.mtx").read_bytes()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    found, said = imported(tmp_path / name)
    assert said[0].startswith("4 node; 2 node to node")
    assert edges_of(found) == ([(0, 1), (1, 2)] if symmetry == "general" else [(1, 0), (2, 1)])
    assert (found.schema.reverse(EDGE) == BACK) == (symmetry == "symmetric")
    assert found.columns[EDGE]["weight"].tolist() == [2.5, 2.5]


@pytest.mark.parametrize("banner", [
    b"\xef\xbb\xbf%%MatrixMarket", b"%%MATRIXMARKET", b"\n%%matrixmarket", b"# by x\n\n% y\n%%MatrixMarket",
])  # fmt: skip
def test_a_line_of_sizes_is_no_edge(banner: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(
        banner + b" matrix coordinate real general\n% sizes\n3 3 2\n1 2 0.5\n2 3 2\n"
    )
    found, _ = imported(tmp_path / "a.txt")
    assert edges_of(found) == [(0, 1), (1, 2)]
    assert found.columns[EDGE]["weight"].tolist() == [0.5, 2]


def test_weights_of_matrices_are_those_of_the_file(tmp_path: Path) -> None:
    head = "%%MatrixMarket matrix coordinate {} general\n3 3 2\n1 2 {}\n2 3 1\n"
    (tmp_path / "a.mtx").write_text(head.format("integer", 16777217))
    assert imported(tmp_path / "a.mtx")[0].columns[EDGE]["weight"].tolist() == [16777217, 1]
    (tmp_path / "b.mtx").write_text(head.format("real", "nan"))
    with pytest.raises(
        ValueError, match="b.mtx: the entry of row 1 and column 2 is not a finite number; correct"
    ):
        imported(tmp_path / "b.mtx")


def test_a_list_that_is_undirected(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("# who knows whom\nann\tbob\t0.5\nbob\teve\t1.5\n")
    found, said = imported(tmp_path / "a.txt", undirected=True)
    assert said == ["3 node; 2 node to node, 2 node rev_to node"]
    assert found.schema.reverse(EDGE) == BACK
    assert found.columns[BACK]["weight"].tolist() == [0.5, 1.5]


def read(folder: Path, content: str | bytes, header: Header = "auto") -> ReadEdges:
    path = folder / "edges.txt"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return edge_list(path, header)


def ids_of(found: ReadEdges) -> list[str] | list[int]:
    return found.ids.strings() if isinstance(found.ids, StringKeys) else found.ids.tolist()


def edge_list_edges_of(found: ReadEdges) -> list[tuple[str | int, str | int]]:
    ids = ids_of(found)
    return [
        (ids[u], ids[v]) for u, v in zip(found.sources.tolist(), found.destinations.tolist(), strict=True)
    ]


@pytest.mark.parametrize(
    ("lines", "ids"),
    [
        (
            ["2020-01-01T00:00:00Z,2020-01-01T01:00:00+01:00"],
            ["2020-01-01T00:00:00Z", "2020-01-01T01:00:00+01:00"],
        ),
        (["a;b;2,5"], ["a", "b"]),
        (["30,10", "10,20", "30,20"], [30, 10, 20]),
        (["-5 -0", "1 2"], ["-5", "-0", "1", "2"]),
        (["-5 0", "9223372036854775807 -9223372036854775808"], [-5, 0, 2**63 - 1, -(2**63)]),
        (["9223372036854775808 1"], ["9223372036854775808", "1"]),
        (["+1,1", "2,3"], ["+1", "1", "2", "3"]),
        (["0xFFFFFFFF,1", "2,3"], ["0xFFFFFFFF", "1", "2", "3"]),
        (["1e3,1000", "2,3"], ["1e3", "1000", "2", "3"]),
        (["é,ß", "日本,é"], ["é", "ß", "日本"]),
        (['"a, b",c', 'c,"d ""e"""'], ["a, b", "c", 'd "e"']),
        (["New York\tLos Angeles", "Los Angeles\tOslo"], ["New York", "Los Angeles", "Oslo"]),
        (["#1 2", "1 #2"], ["1", "#2"]),
    ],
    ids=str,
)
def test_ids_are_what_the_file_says(lines: list[str], ids: list[str] | list[int], tmp_path: Path) -> None:
    assert ids_of(read(tmp_path, "\n".join(lines) + "\n")) == ids


@pytest.mark.parametrize("content", ["a;b;2,5\nb;c;3\n", "a\tb\t2,5\nb\tc\t3\n", "a b 2,5\nb c 3,0\n"])
def test_a_decimal_comma(content: str, tmp_path: Path) -> None:
    found = read(tmp_path, content)
    assert edge_list_edges_of(found) == [("a", "b"), ("b", "c")]
    assert found.edge_columns["weight"].tolist() == [2.5, 3]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("separator", ["\t", " ", ",", ";", "   ", " \t ", ", "])
def test_every_form_gives_the_same_edges(separator: str, end: str, tmp_path: Path) -> None:
    edges = [("30", "10"), ("10", "20"), ("30", "20")]
    lines = ["# Nodes: 3", *(separator.join(edge) for edge in edges[:2]), "", "% more", "// more",
             "   ", "  # more", separator.join(edges[2]) + "  "]  # fmt: skip
    content = codecs.BOM_UTF8 + end.join(lines).encode()
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(content))
    for found in (read(tmp_path, content), edge_list(tmp_path / "a.txt.gz")):
        assert edge_list_edges_of(found) == [(30, 10), (10, 20), (30, 20)]
        assert found.edge_columns == {}


@pytest.mark.parametrize("names", ["Source,Target", "id_1,id_2", "node1,node2"])
def test_a_header_over_integers(names: str, tmp_path: Path) -> None:
    content = f"{names}\n1,2\n2,3\n"
    found = read(tmp_path, content)
    assert edge_list_edges_of(found) == [(1, 2), (2, 3)]
    assert found.notes == [f"the first line, {names!r}, names the columns; --header no reads it as an edge"]
    assert edge_list_edges_of(read(tmp_path, content, "yes")) == [(1, 2), (2, 3)]
    assert edge_list_edges_of(read(tmp_path, content, "no"))[0] == tuple(names.split(","))


@pytest.mark.parametrize(
    "content",
    [
        "source,target,Rating\na,b,3\n",
        "source,target\na,b\n",
        "x,y,w\na,b,3\n",
        "user,item\na,b\n",
        "userId;movieId\na;b\n",
        "follower\tfollowee\na\tb\n",
    ],
)
def test_a_header_over_text(content: str, tmp_path: Path) -> None:
    assert edge_list_edges_of(read(tmp_path, content)) == [("a", "b")]


@pytest.mark.parametrize(
    "content",
    [
        "a,b\nc,d\n",
        "007,08\n1,2\n",
        "a,1\n2,3\n",
        "ann,bob\n",
        "a1,a2\n",
        "node1,node2\nnode2,node3\n",
        "user 1,item 2\nuser 2,item 2\n",
        "old-user,new-user\n",
    ],
)
def test_an_edge_is_not_a_header(content: str, tmp_path: Path) -> None:
    found = read(tmp_path, content)
    assert edge_list_edges_of(found)[0] == tuple(content.split("\n")[0].split(","))
    assert found.notes == []


@pytest.mark.parametrize("line", [
    "src,dst", "Source,Target", "id_1,id_2", "user,item", "userId\tmovieId", "node1 node2", '"from";"to"',
    "source,target,weight", "user_id,item_id,rating,timestamp",
])  # fmt: skip
@pytest.mark.parametrize("start", ["", "\ufeff", "# a list\n\n", "\ufeff% a list\n"])
def test_a_header_alone_is_no_edge(line: str, start: str, tmp_path: Path) -> None:
    for end in ("", "\n", "\r\n# end\n\n"):
        with pytest.raises(
            ValueError, match="edges.txt: has a header, .*, and no edges; add lines of two ids"
        ):
            read(tmp_path, f"{start}{line}{end}")
    with pytest.raises(ValueError, match="has a header, 'a,b', and no edges"):
        read(tmp_path, "a,b\n", "yes")
    if "," in line and line.count(",") == 1:
        assert edge_list_edges_of(read(tmp_path, start + line, "no")) == [tuple(line.split(","))]


@pytest.mark.parametrize(
    ("names", "ends"),
    [
        ("target,source", "'source' and 'target'"),
        ("id,source,target", "'source' and 'target'"),
        ("weight,from_node,to_node", "'from_node' and 'to_node'"),
        ("head,relation,tail", "'head' and 'tail'"),
        ("rating,userId,movieId", "'userId' and 'movieId'"),
        ("id,user_id,item_id", "'user_id' and 'item_id'"),
    ],
)
def test_ends_that_are_not_the_first_columns(names: str, ends: str, tmp_path: Path) -> None:
    """They would be imported as other edges: reversed, or from row numbers."""
    content = f"{names}\n" + ",".join("123"[: names.count(",") + 1]) + "\n"
    message = f"edges.txt: the columns {ends} are not the first two in this order; reorder them, or import"
    with pytest.raises(ValueError, match=message):
        read(tmp_path, content)


@pytest.mark.long
def test_text_after_many_numbers(tmp_path: Path) -> None:
    rows = [f"{row},{row + 1}" for row in range(5_000_000)] + ["x,007"]
    found = read(tmp_path, "\n".join(rows))
    assert isinstance(found.ids, StringKeys)
    assert found.ids[5_000_000:].strings() == ["5000000", "x", "007"]
    assert found.ids[:3].strings() == ["0", "1", "2"]
    assert len(found.sources) == 5_000_001


def test_weights_are_those_of_the_file(tmp_path: Path) -> None:
    found = read(tmp_path, "a b 16777217\nb c 1e40\n").edge_columns["weight"]
    assert (found.dtype, found.tolist()) == (np.float64, [16777217, 1e40])


@pytest.mark.parametrize("content", ["1 2 9007199254740993", "1 2 1 9007199254740993\n2 3 1 1.5"])
def test_numbers_that_are_rounded_are_noted(content: str, tmp_path: Path) -> None:
    assert read(tmp_path, content).notes == [
        f"{['weight', 'time'][content.count('1.5')]}: whole numbers beyond 2**53 are rounded"
    ]
    assert read(tmp_path, content.replace("993", "992")).notes == []


def test_names_of_columns_are_distinct(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="edges.txt: the column 'w' occurs twice in the header; rename one"):
        read(tmp_path, "source,target,w,w\n1,2,3,4\n")


@pytest.mark.parametrize(
    "content", ["1,2,\n2,3,\n", "source,target,\n1,2,\n2,3,\n", "1|2\n2|3\n", "1 | 2\n2 | 3\n"]
)
def test_a_separator_at_the_end_and_bars(content: str, tmp_path: Path) -> None:
    """A spreadsheet writes an empty column."""
    found = read(tmp_path, content)
    assert edge_list_edges_of(found) == [(1, 2), (2, 3)]
    assert found.edge_columns == {}


def test_weights_and_times(tmp_path: Path) -> None:
    found = read(tmp_path, "a b 2 1700000000\nb c 0.5 1700000001\n").edge_columns
    assert (found["weight"].dtype, found["weight"].tolist()) == (np.float32, [2, 0.5])
    assert (found["time"].dtype, found["time"].tolist()) == (np.int64, [1700000000, 1700000001])
    found = read(tmp_path, "SOURCE,TARGET,RATING,TIME\n6,2,4,1289241911.7\n6,5,2,1289241941.5\n").edge_columns
    assert found["RATING"].tolist() == [4, 2]
    assert found["TIME"].tolist() == [1289241911.7, 1289241941.5]


@pytest.mark.parametrize("delimiter", [" ", ",", "\t"])
def test_lists_that_networkx_writes(delimiter: str, tmp_path: Path) -> None:
    graph = networkx.DiGraph()
    graph.add_edge("a", "b")
    graph.add_edge("b", "c")
    networkx.write_edgelist(graph, tmp_path / "a.txt", delimiter=delimiter)
    assert edge_list_edges_of(edge_list(tmp_path / "a.txt")) == [("a", "b"), ("b", "c")]
    graph.add_edge("c", "a", weight=3, note="x, y", size=2.5)
    networkx.write_edgelist(graph, tmp_path / "a.txt", delimiter=delimiter)
    found = edge_list(tmp_path / "a.txt")
    assert edge_list_edges_of(found) == [("a", "b"), ("b", "c"), ("c", "a")]
    assert {name: of.tolist() for name, of in found.edge_columns.items()} == {
        "weight": [1, 1, 3], "size": [0, 0, 2.5], "size_missing": [1, 1, 0],
    }  # fmt: skip
    assert found.notes == [
        "attribute 'weight': 2 of 3 edges have no number; they get 1",
        "attribute 'note' of edges is omitted: it has text",
        "attribute 'size': 2 of 3 edges have no number; they get 0, and 1 in size_missing",
    ]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("# a\n1\n", "line 2: has 1 fields; an edge has two ids"),
        ("1 2 3 4 5\n", "line 1: has 5 fields"),
        ("", "has no edges"),
        ("# a\n", "has no edges"),
        ("a,b\nc,\n", "line 2: an id is empty"),
        ("a b 1\nb c 2\nc d likes\n", "line 3: the third field is 'likes', which is not a number"),
        ("a,b\n".encode("utf-16"), "is UTF-16; save the file as UTF-8"),
        (
            "a,b\nc,d".encode("utf-16-le"),
            "line 1: has a NUL byte; save the file as UTF-8, or correct the line",
        ),
        ("a b 1\nb c 1 \na c inf\n", "line 3: the third field is 'inf', which is not a number"),
        (
            '{"source": 1, "target": 2}\n{"source": 2, "target": 3}\n',
            "is JSON; write lines of two ids, or import",
        ),
        ("[[1, 2],\n [2, 3]]\n", "is JSON; write lines of two ids, or import it by a spec"),
        (gzip.compress(b"1 2\n2 3\n", mtime=0), "edges.txt: is compressed; rename it to end in .txt.gz"),
        ("1 2\n\f\n2 3\n", "line 2: has 1 fields, but other lines have 2"),
        ("a,b,\nb,c,1\n", "line 1: the third field is '', which is not a number"),
        (
            ",source,target\n0,5,6\n1,6,7\n",
            "line 1: the first column has no name, like the index that pandas",
        ),
        ("Unnamed: 0,source,target\n0,5,6\n", "the first column has no name, like the index that pandas"),
    ],
)
def test_bad_lines(content: str | bytes, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=sentence):
        read(tmp_path, content)
