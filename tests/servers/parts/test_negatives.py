"""Negatives over parts on several servers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import khop
from khop.draw import DegreeNegatives, DrawKey, DrawnNegatives, Positives, UniformNegatives
from khop.servers.frame import parsed, whole
from khop.servers.parts import negatives as module
from khop.servers.parts.graph import SharedGraph
from khop.servers.parts.negatives import checked_counts
from support.parts_in_process import part_services
from support.small_typed_folders import BUYS, LIKE

KEY = DrawKey(9)


def graph_of(path: Path) -> SharedGraph:
    graph: SharedGraph = part_services(path)[2]._part._graph  # type: ignore[union-attr,attr-defined]
    return graph


@pytest.mark.parametrize("edge_type", [BUYS, LIKE], ids=["reverse type", "edges of other parts"])
@pytest.mark.parametrize("negatives", [UniformNegatives(2, exact=True), DegreeNegatives(3, exact=True)])
def test_exact_negatives_are_those_of_one_process(
    typed_parts: Path,
    edge_type: khop.EdgeType,
    negatives: DrawnNegatives,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "EDGES_AT_ONCE", 100)  # so that edges by source come in several answers
    positives = Positives(torch.tensor([199, 0, 70, 0]), torch.tensor([4, 9, 0, 2]))
    found = graph_of(typed_parts).sample_negatives(edge_type, negatives, positives, KEY)
    expected = khop.open_graph(typed_parts).sample_negatives(edge_type, negatives, positives, KEY)
    assert torch.equal(found, expected)


def test_a_source_of_no_part_is_named(typed_parts: Path) -> None:
    positives = Positives(torch.tensor([300]), torch.tensor([0]))
    with pytest.raises(ValueError, match="source 300: there are 300 'user' nodes"):
        graph_of(typed_parts).sample_negatives(BUYS, UniformNegatives(exact=True), positives, KEY)


def test_counts_of_an_answer_are_checked() -> None:
    def answer(counts: torch.Tensor) -> torch.Tensor:
        return checked_counts(parsed(whole({"counts": 0}, [counts]), 1 << 20, "answer"), 3)

    assert answer(torch.tensor([1, 0, 2])).tolist() == [1, 0, 2]
    for wrong in (torch.tensor([1, 2]), torch.tensor([1.0, 0, 2]), torch.tensor([1, -1, 2])):
        with pytest.raises(ValueError, match=r"counts: are|number of edges -1"):
            answer(wrong)
