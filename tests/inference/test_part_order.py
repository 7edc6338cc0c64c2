"""Nodes are put together by their parts, and rows of them put back."""

from __future__ import annotations

import torch

from khop.inference.part_order import PartOrder, pieces_of

BOUNDS = (0, 10, 10, 25)


def test_nodes_of_a_part_come_together_and_their_rows_go_back() -> None:
    nodes = torch.tensor([12, 3, 24, 3, 10, 9])
    order = PartOrder.of(nodes, BOUNDS)
    there = order.there(nodes)
    assert there.tolist() == [3, 3, 9, 10, 12, 24]
    assert order.back(there).tolist() == nodes.tolist()
    assert pieces_of(there, BOUNDS) == (0, 3, 3, 6)


def test_nodes_that_stand_so_are_left_alone() -> None:
    for nodes, bounds in [(torch.tensor([1, 1, 20]), BOUNDS), (torch.tensor([9, 2]), (0, 25))]:
        order = PartOrder.of(nodes, bounds)
        assert order.there(nodes) is nodes
        assert order.back(nodes) is nodes
    assert PartOrder.of(None, BOUNDS) == PartOrder()


def test_pieces_of_all_nodes_are_the_parts_and_of_nodes_in_another_order_none() -> None:
    assert pieces_of(None, BOUNDS) == BOUNDS
    assert pieces_of(torch.tensor([12, 3]), BOUNDS) == ()
    assert pieces_of(torch.tensor([3, 12]), (0, 25)) == ()
    assert pieces_of(torch.empty(0, dtype=torch.int64), BOUNDS) == (0, 0, 0, 0)
