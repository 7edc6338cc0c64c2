"""Single hops over parts on several servers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import khop
from khop.draw import DrawKey, Frontier
from khop.errors import Unsupported
from khop.rules.rule import Hop
from khop.rules.uniform import Uniform
from khop.servers.frame import parsed, whole
from khop.servers.parts.graph import SharedGraph, bytes_of
from support.parts_in_process import part_services
from support.same_samples import assert_same
from support.small_typed_folders import BUYS, LIKE

KEY = DrawKey(5)
HOP = Hop(2, {BUYS: 3, LIKE: -1}, Uniform(), edge_ids=True)


@pytest.fixture
def graph(typed_parts: Path) -> SharedGraph:
    graph: SharedGraph = part_services(typed_parts)[1]._part._graph  # type: ignore[union-attr,attr-defined]
    return graph


@pytest.mark.parametrize("nodes", [[199, 3, 3, 70, 120], [], [0]])
def test_a_hop_is_that_of_all_parts_in_one_process(
    graph: SharedGraph, typed_parts: Path, nodes: list[int]
) -> None:
    frontier = {"item": Frontier(torch.tensor(nodes, dtype=torch.int64))}
    drawn = graph.sample_hop(frontier, HOP, KEY)
    expected = khop.open_graph(typed_parts).sample_hop(frontier, HOP, KEY)
    assert list(drawn) == list(expected)
    assert_same(dict(drawn), dict(expected))


def test_only_the_owners_of_a_frontier_are_asked(graph: SharedGraph) -> None:
    def requests() -> list[int]:
        return [len(owner.asked) for owner in graph.exchange._owners.values()]  # type: ignore[attr-defined]

    first, _ = graph.spans(1)["item"]
    graph.sample_hop({"item": Frontier(torch.tensor([first]))}, HOP, KEY)
    assert requests() == [0, 0]
    graph.sample_hop({"item": Frontier(torch.tensor([0]))}, HOP, KEY)
    assert requests() == [1, 0]


def test_a_node_of_no_part_is_named(graph: SharedGraph) -> None:
    with pytest.raises(ValueError, match=r"frontier node 200: not in \[0, 200\)"):
        graph.sample_hop({"item": Frontier(torch.tensor([200]))}, HOP, KEY)


def test_edges_are_counted_over_all_parts_unless_some_are_left_out(graph: SharedGraph) -> None:
    assert graph.num_edges(LIKE) == 900
    assert graph.only([LIKE]).schema.edge_types == (LIKE,)
    thinned = graph.held.keeping({LIKE: [torch.arange(3)]})
    with pytest.raises(Unsupported, match="each process knows the number"):
        SharedGraph(thinned, graph.exchange).num_edges(LIKE)


def test_in_degrees_come_from_the_owners_of_the_nodes(graph: SharedGraph, typed_parts: Path) -> None:
    whole_graph = khop.open_graph(typed_parts)
    for nodes in (
        torch.tensor([199, 3, 3, 70, 120, 0]),
        torch.arange(200),
        torch.empty(0, dtype=torch.int64),
    ):
        for edge_type in (BUYS, LIKE):
            assert torch.equal(
                graph.in_degrees(edge_type, nodes), whole_graph.csc(edge_type).indptr.diff()[nodes]
            )


def test_a_field_that_is_not_bytes_is_refused() -> None:
    frame = parsed(whole({"drawn": 0}, [torch.arange(3)]), 1 << 20, "answer")
    with pytest.raises(ValueError, match=r"answer\.drawn: is torch\.int64 \(3,\), not bytes"):
        bytes_of(frame, "drawn")
