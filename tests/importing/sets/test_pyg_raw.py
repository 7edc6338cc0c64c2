"""Raw files of arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from importing.sets.layouts import reddit, saint, shchur
from khop.importing.sets.pyg_raw import PYG_RAW, read_reddit, read_saint, read_shchur
from khop.importing.sets.set_graph import EDGE, NODE


def test_reddit(tmp_path: Path) -> None:
    reddit(tmp_path)
    graph = read_reddit(tmp_path, "Reddit")
    assert graph.nodes[NODE].columns["x"].dtype == np.float32
    assert graph.edges[EDGE].sources.tolist() == [0, 1, 2]
    assert graph.edges[EDGE].destinations.tolist() == [1, 0, 2]


@pytest.mark.parametrize("kind", ["classes", "answers"])
def test_graphsaint(kind: str, tmp_path: Path) -> None:
    saint(tmp_path, kind)
    graph = read_saint(tmp_path, "Yelp")
    expected = [1, -1, 0] if kind == "classes" else [[0, 1], [255, 255], [1, 0]]
    assert graph.nodes[NODE].columns["y"].tolist() == expected
    assert graph.edges[EDGE].sources.tolist() == [0, 2]
    assert {name: ids.tolist() for name, ids in graph.nodes[NODE].splits.items()} == {
        "train": [0], "val": [1], "test": [2],
    }  # fmt: skip
    (tmp_path / "role.json").unlink()
    with pytest.raises(ValueError, match=r"role.json: cannot be read"):
        read_saint(tmp_path, "Yelp")


def test_shchur(tmp_path: Path) -> None:
    shchur(tmp_path / PYG_RAW["Coauthor-CS"].file)
    graph = read_shchur(tmp_path, "Coauthor-CS")
    assert graph.edges[EDGE].sources.tolist() == [0, 1]
    assert graph.edges[EDGE].destinations.tolist() == [1, 0]
