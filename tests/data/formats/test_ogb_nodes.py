"""OGB's node sets: each published layout becomes the same graph that OGB's own reader makes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import khop
from data.formats.layouts import arxiv, gz_rows, mag, papers, proteins
from khop.data.formats.ogb import OGB_SETS, Directions, ogb_nodes
from khop.data.formats.raw_arrays import Scratch

EDGE = ("node", "to", "node")


def imported(
    name: str, folder: Path, directions: Directions = "as stored", memory: int = 1 << 30
) -> khop.Graph:
    out = folder.parent / f"graph-{directions}-{memory}"
    with Scratch.beside(out, memory) as scratch:
        ogb_nodes(OGB_SETS[name], folder, directions, scratch).write(out, memory, 1, None)
    return khop.open_graph(out)


def edges_of(graph: khop.Graph, edge_type: tuple[str, str, str] = EDGE) -> list[tuple[int, int]]:
    csc = graph.csc(edge_type)
    return sorted(zip(csc.indices.tolist(), csc.destinations().tolist(), strict=True))


def test_a_plain_set(tmp_path: Path) -> None:
    graph = imported("ogbn-arxiv", arxiv(tmp_path))
    columns = graph.columns["node"]
    assert edges_of(graph) == [(0, 1), (1, 2), (3, 2), (4, 0)]
    assert columns["label"].tolist() == [4, 0, 39, -1, 1]  # nan is unknown
    assert graph.schema.columns["node"]["label"].num_classes == 40
    expected = np.array([[0.1 * row, -row] for row in range(5)]).astype(np.float32)
    assert columns["x"].numpy().tobytes() == expected.tobytes()
    assert columns["year"].tolist() == [2010, 2011, 2012, 2013, 2014]
    assert {name: graph.split(name)["node"].tolist() for name in graph.split_names} == {
        "train": [0, 1], "val": [2], "test": [4],
    }  # fmt: skip


def test_both_directions(tmp_path: Path) -> None:
    graph = imported("ogbn-arxiv", arxiv(tmp_path), "both directions")
    assert edges_of(graph) == sorted([(0, 1), (1, 2), (3, 2), (4, 0), (1, 0), (2, 1), (2, 3), (0, 4)])


def test_several_answers_and_edge_columns_in_both_directions(tmp_path: Path) -> None:
    graph = imported("ogbn-proteins", proteins(tmp_path))
    assert graph.columns["node"]["label"].tolist() == [[1, 0], [0, 255], [1, 1]]
    assert graph.columns["node"]["species"].tolist() == [3702, 9606, 9606]
    assert edges_of(graph) == [(0, 1), (1, 0), (1, 2), (2, 1)]
    csc, given = graph.csc(EDGE), graph.columns[EDGE]["x"]
    of_pair = {
        frozenset((s, d)): row
        for s, d, row in zip(csc.indices.tolist(), csc.destinations().tolist(), given.tolist(), strict=True)
    }
    assert of_pair == {frozenset((0, 1)): [0.5, 1.0], frozenset((1, 2)): [0.25, 2.0]}


def test_a_typed_set_and_its_reverses(tmp_path: Path) -> None:
    graph = imported("ogbn-mag", mag(tmp_path))
    assert graph.schema.node_types == ("author", "paper")
    assert edges_of(graph, ("author", "writes", "paper")) == [(0, 0), (1, 1), (1, 2)]
    assert graph.columns["paper"]["label"].tolist() == [7, 0, 348]
    assert graph.columns["paper"]["x"].tolist() == [[1.5, 2], [3, 4], [5, 6]]
    assert graph.split("test")["paper"].tolist() == [2]
    both = imported("ogbn-mag", tmp_path / "mag", "both directions")
    assert edges_of(both, ("paper", "rev_writes", "author")) == [(0, 0), (1, 1), (2, 1)]
    assert both.schema.reverse(("paper", "cites", "paper")) == ("paper", "rev_cites", "paper")


@pytest.mark.parametrize("memory", [1, 1 << 30], ids=["mapped", "in memory"])
def test_data_npz_is_streamed(memory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("khop.data.formats.ogb._EDGES_AT_ONCE", 7)
    arrays = papers(tmp_path)
    graph = imported("ogbn-papers100M", tmp_path / "papers100M-bin", memory=memory)
    assert edges_of(graph) == sorted(map(tuple, arrays["edge_index"].T.tolist()))
    assert torch.equal(graph.columns["node"]["x"], torch.from_numpy(arrays["node_feat"]))
    labels = arrays["node_label"][:, 0]
    assert (
        graph.columns["node"]["label"].tolist() == np.where(np.isnan(labels), -1, labels).astype(int).tolist()
    )


def test_a_file_of_another_length_is_refused(tmp_path: Path) -> None:
    folder = arxiv(tmp_path)
    gz_rows(folder / "raw" / "node-feat.csv.gz", [[1.5]] * 4)
    with pytest.raises(ValueError, match=r"node-feat.csv.gz: has 4 rows, and 5 are expected"):
        imported("ogbn-arxiv", folder)
    assert not list(tmp_path.glob("graph*"))
    assert not list(tmp_path.glob(".graph*"))


def test_a_label_beyond_the_classes_is_named(tmp_path: Path) -> None:
    folder = arxiv(tmp_path)
    gz_rows(folder / "raw" / "node-label.csv.gz", [[0], [40], [1], [2], [3]])
    with pytest.raises(
        ValueError, match=r"node-label.csv.gz, row 2: the label is 40, and there are 40 classes"
    ):
        imported("ogbn-arxiv", folder)
