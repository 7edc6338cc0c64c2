"""A sampler knows the edge types of which it averages a few neighbors and exact evaluation all."""

from __future__ import annotations

import pytest
import torch

import khop
from khop.graph.store import CscGraph, csc_graph_from_edges

TO, ON = ("node", "to", "node"), ("node", "on", "node")


def graph() -> CscGraph:
    ends = torch.arange(4), torch.zeros(4, dtype=torch.int64)
    columns = {TO: {"r": torch.arange(4)}}
    return csc_graph_from_edges({"node": 4}, {TO: ends, ON: ends}, columns=columns, sort_by="r")


@pytest.mark.parametrize(
    "rule", [khop.Uniform(), khop.Labor(), khop.Weighted("r", replacement=True)], ids=str
)
def test_edge_types_of_limited_draws_are_averaged(rule: khop.Rule) -> None:
    fanouts = [{TO: 2, ON: -1}, {TO: 0, ON: -1}]
    assert khop.NeighborSampler(graph(), fanouts, rule=rule).averaged_types == {TO}
    assert khop.LinkSampler(graph(), [0, 3], rule=rule).averaged_types == {TO, ON}


@pytest.mark.parametrize(
    "rule",
    [
        khop.Sum(),
        khop.RelationMean("r"),
        khop.Temporal("r"),
        khop.Temporal("r", inner=khop.RelationMean("r")),
    ],
    ids=str,
)
def test_weighted_draws_and_those_of_no_exact_inference_are_not(rule: khop.Rule) -> None:
    assert khop.NeighborSampler(graph(), [2], rule=rule).averaged_types == set()


def test_edges_that_exact_inference_takes_and_groups_are_not() -> None:
    assert khop.NeighborSampler(graph(), [2], rule=khop.TopK("r")).averaged_types == {ON}
    assert khop.ShadowSampler(graph(), [2], layers=1).averaged_types == set()
