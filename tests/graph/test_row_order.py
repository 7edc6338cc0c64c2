"""Rows follow a column of times when the writer is told so, in the folder and for the one who reads it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from khop import EdgeTable, NodeTable, open_folder, write_graph
from khop.graph.manifest import fingerprint
from khop.graph.verify import verify_folder

KNOWS, SENDS = ("person", "knows", "person"), ("mail", "sent-to", "person")
SINCE = torch.tensor([5, 9, 3, 7, 3])
EDGES = {
    KNOWS: EdgeTable(torch.tensor([0, 1, 2, 3, 4]), torch.tensor([1, 0, 1, 0, 1]), {"time": SINCE}),
    SENDS: EdgeTable(torch.tensor([2, 1, 0]), torch.tensor([3, 3, 3])),
}
NODES = {
    "person": NodeTable(5),
    "mail": NodeTable(columns={"time": np.array([1, 3, 2], np.int32)}, splits={"train": np.array([1])}),
}


def test_edges_follow_their_own_times_or_those_of_their_sources(tmp_path: Path) -> None:
    told: list[str] = []
    path = write_graph(
        tmp_path / "g", NODES, EDGES, sort_by="time", notice=lambda what, done, total: told.append(what)
    )
    folder = open_folder(path)
    assert folder.csc(KNOWS).indices.tolist() == [3, 1, 2, 4, 0]
    assert folder.columns()[KNOWS]["time"].tolist() == [7, 9, 3, 3, 5]
    assert folder.edge_id(KNOWS).tolist() == [3, 1, 2, 4, 0]
    assert folder.csc(SENDS).indices.tolist() == [0, 2, 1]
    assert [edge.row_order for edge in folder.manifest.edges] == ["time", "time"]
    assert [what for what in told if "were not in the order" in what] == [
        "rows of person__knows__person were not in the order of 'time': sorted",
        "rows of mail__sent-to__person were not in the order of 'time': sorted",
    ]
    assert verify_folder(path) == []


def test_rows_that_are_in_order_stay_and_nothing_is_said(tmp_path: Path) -> None:
    told: list[str] = []
    in_order = {KNOWS: replace(EDGES[KNOWS], columns={"time": torch.arange(5)})}
    path = write_graph(
        tmp_path / "g", NODES, in_order, sort_by="time", notice=lambda what, *_: told.append(what)
    )
    assert open_folder(path).csc(KNOWS).indices.tolist() == [1, 3, 0, 2, 4]
    assert not any("were not in the order" in what for what in told)


def test_types_without_times_keep_their_order(tmp_path: Path) -> None:
    nodes = NODES | {"mail": NodeTable(3)}
    folder = open_folder(write_graph(tmp_path / "g", nodes, EDGES, sort_by="time"))
    assert folder.csc(SENDS).indices.tolist() == [2, 1, 0]
    assert folder.manifest.edge(SENDS).row_order == "input"


@pytest.mark.parametrize(
    ("nodes", "edges", "by", "message"),
    [
        (NODES, EDGES, "when", r"sort_by 'when': no such column of times; there are .*'mail': \['time'\]"),
        (NODES, EDGES, "input", "sort_by 'input': no such column"),
        (
            NODES,
            {KNOWS: replace(EDGES[KNOWS], columns={"time": SINCE.float()})},
            "time",
            r"'time' is float32 of shape \(5,\): times are whole numbers",
        ),
    ],
    ids=["unknown", "the word for none", "no whole numbers"],
)
def test_a_column_that_is_no_time_is_named(
    tmp_path: Path,
    nodes: dict[str, NodeTable],
    edges: dict[tuple[str, str, str], EdgeTable],
    by: str,
    message: str,
) -> None:
    with pytest.raises(ValueError, match=message):
        write_graph(tmp_path / "g", nodes, edges, sort_by=by)
    assert list(tmp_path.iterdir()) == []


def test_verify_finds_rows_that_do_not_follow_their_column(tmp_path: Path) -> None:
    path = write_graph(tmp_path / "g", NODES, {KNOWS: EDGES[KNOWS]})
    lying = (path / "graph.json").read_text().replace('"row_order": "input"', '"row_order": "time"')
    (path / "graph.json").write_text(_with_fingerprint(lying))
    (finding,) = verify_folder(path)
    assert finding.file == "edges/person__knows__person/indices.npy"
    assert "row_order is 'time', but the edge at position 1 is earlier" in finding.problem


def test_a_row_order_that_is_no_column_does_not_open(tmp_path: Path) -> None:
    path = write_graph(tmp_path / "g", NODES, {KNOWS: EDGES[KNOWS]})
    lying = (path / "graph.json").read_text().replace('"row_order": "input"', '"row_order": "when"')
    (path / "graph.json").write_text(_with_fingerprint(lying))
    with pytest.raises(ValueError, match="row_order 'when': no such column"):
        open_folder(path)


def _with_fingerprint(text: str) -> str:
    document = json.loads(text)
    del document["fingerprint"]
    return json.dumps({**document, "fingerprint": fingerprint(document)})
