"""Nodes that exist before a time, by the edges of all parts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import khop
from khop.api.time_split import edges_before
from khop.distributed.held_edges import HeldEdges
from khop.servers.parts.existing import existing, touched_answer
from khop.servers.parts.graph import SharedGraph
from support.parts_in_process import part_services


@pytest.fixture(scope="module")
def graphs(dated_parts: Path) -> list[SharedGraph]:
    return [service._served.graph for service in part_services(dated_parts)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("limit", [-1, 30, 60, 200])
def test_every_server_marks_the_nodes_that_one_process_marks(
    graphs: list[SharedGraph], dated_parts: Path, limit: int
) -> None:
    topology = edges_before(khop.open_graph(dated_parts), limit).in_one_piece("a test")
    for graph in graphs:
        found = existing(graph, HeldEdges(graph.held), limit)
        assert found.keys() == topology.candidates.keys() == {"user", "item"}
        assert all(torch.equal(marks, topology.candidates[t]) for t, marks in found.items())


def test_an_answer_is_about_the_edges_of_its_part_alone(graphs: list[SharedGraph]) -> None:
    marks = []
    for graph in graphs:
        fields, tensors = touched_answer(HeldEdges(graph.held), 60)
        numbers = dict(map(tuple, fields["marks"]))  # type: ignore[call-overload]
        marks.append(tensors.all[numbers["item"]])
    together = torch.stack(marks)
    assert together.any(0).sum() > max(int(of_part.sum()) for of_part in marks)
