"""METIS finds the parts of a graph that falls apart, whatever the direction and type of its edges."""

from __future__ import annotations

import torch

from khop.graph.csc_graph import csc_graph_from_edges
from khop.graph.progress import Meter
from khop.partition.balance import AssignRequest, Balance, Numbering
from khop.partition.metis import Metis


def test_two_components_are_two_parts() -> None:
    """Users and items of two groups, which buy within their group; self-loops do not matter."""
    users, items = torch.arange(40), torch.arange(40)
    bought = (users + 2) % 40  # even users buy even items
    edges = {
        ("user", "buys", "item"): (torch.cat([users, users]), torch.cat([items, bought])),
        ("user", "knows", "user"): (torch.cat([users, users]), torch.cat([users, bought])),
    }
    graph = csc_graph_from_edges({"user": 40, "item": 40}, edges)
    numbering = Numbering.of(graph.counts)
    request = AssignRequest(graph, numbering, Balance({}, {}, torch.empty(0)), 2, 1, Meter(0))
    parts = numbering.by_type(Metis(1).assign(request))
    even = parts["user"][0]
    for of_type in parts.values():
        assert of_type.dtype == torch.int32
        assert torch.equal(of_type == even, torch.arange(40) % 2 == 0)
