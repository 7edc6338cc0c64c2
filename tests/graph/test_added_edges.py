"""Further edge types of a graph in memory: what they bring along, and which are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from khop.graph.added_edges import with_edges
from khop.graph.csc_graph import csc_graph_from_edges
from khop.graph.inputs import Array
from khop.graph.quantize import Quantized, quantize
from khop.graph.tables import EdgeTable
from khop.schema import EdgeType
from khop.testing.graphs import BUYS, LIKE, int64

DAYS = int64([5, 2, 3, 4])
GIVEN = {LIKE: (int64([0, 1, 2, 1]), int64([0, 0, 1, 1]))}


def test_further_edges_come_with_their_columns_and_reverses_and_what_was_there_stays() -> None:
    graph = csc_graph_from_edges({"item": 3}, GIVEN, columns={LIKE: {"day": DAYS}})
    near, back = ("item", "near", "item"), ("item", "near-back", "item")
    distance = np.array([7, 9], np.int16)
    joined = with_edges(
        graph,
        {
            near: EdgeTable(int64([2, 0]), int64([1, 0]), {"distance": distance}, reverse_of=back),
            back: EdgeTable(int64([1, 0]), int64([2, 0])),
        },
    )
    assert joined.schema.edge_types == (LIKE, near, back)
    assert (joined.schema.reverse(near), joined.schema.reverse(back)) == (back, near)
    assert joined.csc(LIKE) is graph.csc(LIKE)
    assert joined.columns[LIKE]["day"] is graph.columns[LIKE]["day"]
    assert joined.csc(near).indices.tolist() == [0, 2]
    assert joined.columns[near]["distance"].tolist() == [9, 7]  # by destination
    assert graph.schema.edge_types == (LIKE,)


@pytest.mark.parametrize(
    ("edge_type", "column", "message"),
    [
        (LIKE, DAYS, "like.*the graph has it already, give the new one another name"),
        (BUYS, DAYS, "no node type 'user'"),
        (("item", "near", "item"), DAYS[:2], "near.*column 'c' has 2 rows, but .* has 4 edges"),
        (("item", "near", "item"), np.array(list("abcd")), "near.*column 'c' is str32: convert it to one of"),
        (("item", "near", "item"), quantize(torch.rand(4, 2)), "near.*column 'c' is quantized: give it as"),
    ],
    ids=["there already", "no node type", "too few", "text", "quantized"],
)
def test_further_edges_that_do_not_fit_are_named(
    edge_type: EdgeType, column: Array | Quantized, message: str
) -> None:
    graph = csc_graph_from_edges({"item": 3}, GIVEN)
    with pytest.raises(ValueError, match=message):
        with_edges(graph, {edge_type: EdgeTable(*GIVEN[LIKE], columns={"c": column})})


@pytest.mark.parametrize(
    ("reverse_of", "message"),
    [
        (("item", "liked", "item"), "near.*reverse_of .*liked.*: no such edge type; there are .*like"),
        (BUYS, "near.*reverse_of .*buys.*: it must lead from destination to source"),
        (LIKE, r"near.*reverse_of .*like.*: some edge has no reverse there \(4 and 4 edges\); add it, or"),
    ],
    ids=["not there", "other ends", "other edges"],
)
def test_a_reverse_that_is_none_is_named(reverse_of: EdgeType, message: str) -> None:
    edges = GIVEN | {BUYS: (int64([0]), int64([0]))}
    graph = csc_graph_from_edges({"user": 1, "item": 3}, edges)
    sources, destinations = GIVEN[LIKE]
    near = ("item", "near", "item")
    turned = EdgeTable(destinations, sources, reverse_of=LIKE)
    assert with_edges(graph, {near: turned}).schema.reverse(LIKE) == near
    with pytest.raises(ValueError, match=message):
        with_edges(graph, {near: EdgeTable(sources, destinations, reverse_of=reverse_of)})
