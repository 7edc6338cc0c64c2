"""Edge lists of all separators, with ids of both kinds."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from khop.importing.sets.edge_list import edge_list
from khop.kernels.id_table import StringKeys


@pytest.mark.parametrize("separator", ["\t", " ", ",", ";"])
def test_nodes_are_numbered_as_they_appear(separator: str, tmp_path: Path) -> None:
    lines = [
        "# Nodes: 3",
        "% more",
        *(separator.join(edge) for edge in (("30", "10"), ("10", "20"), ("30", "20"))),
    ]
    with gzip.open(tmp_path / "a.txt.gz", "wt") as file:
        file.write("\n".join(lines) + "\n")
    found = edge_list(tmp_path / "a.txt.gz")
    assert found.ids.tolist() == [30, 10, 20]  # type: ignore[union-attr]
    assert (found.sources.tolist(), found.destinations.tolist()) == ([0, 1, 0], [1, 2, 2])
    assert found.edge_columns == {}


def test_text_after_many_numbers(tmp_path: Path) -> None:
    rows = [f"{row},{row + 1}" for row in range(300_000)] + ["x,007"]
    (tmp_path / "a.csv").write_text("\n".join(rows))
    found = edge_list(tmp_path / "a.csv")
    assert isinstance(found.ids, StringKeys)
    assert found.ids.strings()[-2:] == ["x", "007"]
    assert len(found.sources) == 300_001


def test_weights(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a b 2\nb c 0.5\n")
    found = edge_list(tmp_path / "a.txt").edge_columns["weight"]
    assert (found.dtype, found.tolist()) == (np.float32, [2, 0.5])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("# a\n1\n", "line 2: has 1 fields; an edge has two ids"),
        ("1 2 3 4\n", "line 1: has 4 fields"),
        ("", "has no edges"),
        ("1 2\n3\n", "cannot be read"),
        ("a,b\nc,\n", "an edge has an empty id"),
        ("1 2 x\n", "the third field of a line is no number"),
    ],
)
def test_bad_lines(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(text)
    with pytest.raises(ValueError, match=sentence):
        edge_list(tmp_path / "a.txt")
