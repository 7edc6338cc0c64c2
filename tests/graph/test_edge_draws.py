"""Neighbors that a rule's reference gives are checked before anything uses them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

import khop
from khop.draw import DrawKey, Frontier, Neighbors
from khop.graph.csc_graph import csc_graph_from_edges
from khop.kernels.draw_request import DrawRequest
from khop.rules.rule import Hop

TO = ("node", "to", "node")
TWO, EDGES = torch.tensor([2]), torch.arange(4)
NODES = torch.tensor([3, 2, 1, 4], dtype=torch.int32)


@dataclass(frozen=True)
class Given(khop.RuleBase):
    """A rule with a wrong result."""

    how: Callable[[DrawRequest], Neighbors]

    def reference(self, request: DrawRequest) -> Neighbors:
        return self.how(request)


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        (lambda request: request.neighbors(torch.tensor([4]), EDGES), r"gave a row 4 edges, where most\(2\)"),
        (lambda request: request.neighbors(TWO, EDGES), "offsets do not split 4 edges into 1 rows"),
        (lambda request: request.neighbors(TWO, EDGES[2:] + 1), "gave an edge of another row; draw from"),
        (lambda request: request.neighbors(TWO, EDGES[:2], torch.ones(2)), "gave weights, where has_weights"),
        (lambda request: request.neighbors(TWO, EDGES[:2], TWO), "weights are torch.int64"),
        (lambda request: Neighbors(torch.tensor([0, 2]), NODES[:2]), "gave no edges; make Neighbors by"),
        (lambda request: Neighbors(torch.tensor([0, 2]), NODES[:2], EDGES[2:]), "nodes are not the sources"),
    ],
)
def test_a_wrong_result_of_a_rule_is_named(how: Callable[[DrawRequest], Neighbors], problem: str) -> None:
    ends = torch.tensor([*NODES.tolist(), 0]), torch.tensor([0, 0, 0, 0, 1])
    graph = csc_graph_from_edges({"node": 5}, {TO: ends})
    with pytest.raises(ValueError, match=f"edge type .*Given.*{problem}"):
        graph.sample_hop({"node": Frontier(torch.tensor([0]))}, Hop(1, {TO: 2}, Given(how)), DrawKey(0))
