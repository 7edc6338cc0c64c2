"""Edge lists: ids as they stand, in files of all forms."""

from __future__ import annotations

import codecs
import gzip
from pathlib import Path

import networkx
import numpy as np
import pytest

from khop.importing.sets.edge_list import Header, ReadEdges, edge_list
from khop.kernels.id_table import StringKeys


def read(folder: Path, content: str | bytes, header: Header = "auto") -> ReadEdges:
    path = folder / "edges.txt"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return edge_list(path, header)


def ids_of(found: ReadEdges) -> list[str] | list[int]:
    return found.ids.strings() if isinstance(found.ids, StringKeys) else found.ids.tolist()


def edges_of(found: ReadEdges) -> list[tuple[str | int, str | int]]:
    ids = ids_of(found)
    return [
        (ids[u], ids[v]) for u, v in zip(found.sources.tolist(), found.destinations.tolist(), strict=True)
    ]


@pytest.mark.parametrize(
    ("lines", "ids"),
    [
        (["1.10,2.0", "1.1,2.00"], ["1.10", "2.0", "1.1", "2.00"]),
        (
            ["18446744073709551615,18446744073709551614", "18446744073709551614,18446744073709551613"],
            ["18446744073709551615", "18446744073709551614", "18446744073709551613"],
        ),
        (["true,false", "True,1"], ["true", "false", "True", "1"]),
        (
            ["2020-01-01T00:00:00Z,2020-01-01T01:00:00+01:00"],
            ["2020-01-01T00:00:00Z", "2020-01-01T01:00:00+01:00"],
        ),
        (["007,7", "7,08"], ["007", "7", "08"]),
        (["a, b", "b, a"], ["a", "b"]),
        (["NA,b", "null,c", "nan,d"], ["NA", "b", "null", "c", "nan", "d"]),
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
    assert edges_of(found) == [("a", "b"), ("b", "c")]
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
        assert edges_of(found) == [(30, 10), (10, 20), (30, 20)]
        assert found.edge_columns == {}


@pytest.mark.parametrize("names", ["Source,Target", "id_1,id_2", "node1,node2"])
def test_a_header_over_integers(names: str, tmp_path: Path) -> None:
    content = f"{names}\n1,2\n2,3\n"
    found = read(tmp_path, content)
    assert edges_of(found) == [(1, 2), (2, 3)]
    assert found.notes == [f"the first line, {names!r}, names the columns; --header no reads it as an edge"]
    assert edges_of(read(tmp_path, content, "yes")) == [(1, 2), (2, 3)]
    assert edges_of(read(tmp_path, content, "no"))[0] == tuple(names.split(","))


@pytest.mark.parametrize(
    "content", ["source,target,Rating\na,b,3\n", "source,target\na,b\n", "x,y,w\na,b,3\n"]
)
def test_a_header_over_text(content: str, tmp_path: Path) -> None:
    assert edges_of(read(tmp_path, content)) == [("a", "b")]


@pytest.mark.parametrize("content", ["a,b\nc,d\n", "007,08\n1,2\n", "a,1\n2,3\n", "source,target\n"])
def test_an_edge_is_not_a_header(content: str, tmp_path: Path) -> None:
    found = read(tmp_path, content)
    assert edges_of(found)[0] == tuple(content.split("\n")[0].split(","))
    assert found.notes == []


def test_a_header_alone_is_no_edge(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no edges"):
        read(tmp_path, "a,b\n", "yes")


def test_text_after_many_numbers(tmp_path: Path) -> None:
    rows = [f"{row},{row + 1}" for row in range(5_000_000)] + ["x,007"]
    found = read(tmp_path, "\n".join(rows))
    assert isinstance(found.ids, StringKeys)
    assert found.ids[5_000_000:].strings() == ["5000000", "x", "007"]
    assert found.ids[:3].strings() == ["0", "1", "2"]
    assert len(found.sources) == 5_000_001


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
    assert edges_of(edge_list(tmp_path / "a.txt")) == [("a", "b"), ("b", "c")]
    graph.add_edge("c", "a", weight=3, note="x, y", size=2.5)
    networkx.write_edgelist(graph, tmp_path / "a.txt", delimiter=delimiter)
    found = edge_list(tmp_path / "a.txt")
    assert edges_of(found) == [("a", "b"), ("b", "c"), ("c", "a")]
    assert {name: of.tolist() for name, of in found.edge_columns.items()} == {
        "weight": [1, 1, 3], "size": [0, 0, 2.5], "size_missing": [1, 1, 0],
    }  # fmt: skip
    assert found.notes == [
        "attribute 'weight': 2 of 3 edges have no number; they get 1",
        "attribute 'note' of edges is left out: it has text",
        "attribute 'size': 2 of 3 edges have no number; they get 0, and 1 in size_missing",
    ]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("# a\n1\n", "line 2: has 1 fields; an edge has two ids"),
        ("1 2 3 4 5\n", "line 1: has 5 fields"),
        ("", "has no edges"),
        ("# a\n", "has no edges"),
        ("1 2\n# a\n\n3\n", "line 4: has 1 fields, and other lines have 2"),
        ("a,b\nc,\n", "line 2: an id is empty"),
        ("1 2 x\n", "line 1: the third field is 'x', which is not a number"),
        ("a b 1\nb c 2\nc d likes\n", "line 3: the third field is 'likes', which is not a number"),
        ("a;b;2,5\nb;c;x\n", "line 2: the third field is 'x'"),
        (b"a,b\n\xff,c\n", "line 2: invalid UTF-8; save the file as UTF-8"),
        ("a,b\n".encode("utf-16"), "is UTF-16; save the file as UTF-8"),
    ],
)
def test_bad_lines(content: str | bytes, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=sentence):
        read(tmp_path, content)
