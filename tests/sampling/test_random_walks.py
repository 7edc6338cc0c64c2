"""Random walks: steps along in-edges with the probabilities of a Markov chain."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import khop
from khop.graph.csc_graph import csc_graph_from_edges
from support.group_graphs import COUNT, PAIRS, TO, chorded

GRAPH = chorded()
DEGREES = torch.bincount(torch.tensor(PAIRS)[:, 1], minlength=COUNT)


def transitions() -> Tensor:
    """The probability of a step from a row's node to a column's."""
    matrix = torch.zeros(COUNT, COUNT, dtype=torch.float64)
    for source, into in PAIRS:
        matrix[into, source] += 1 / int(DEGREES[into])
    return matrix


def near(found: Tensor, expected: Tensor, count: int) -> bool:
    """Shares of `count` draws differ by at most 4.5 deviations."""
    deviation = (expected * (1 - expected) / count).sqrt()
    return bool(((found - expected).abs() <= 4.5 * deviation + 1e-12).all())


def test_the_distribution_in_proportion_to_degrees_is_stationary() -> None:
    starts = torch.arange(COUNT).repeat_interleave(DEGREES * 400)
    walks = khop.random_walks(GRAPH, starts, [TO] * 6, seed=1)
    expected = DEGREES.double() / DEGREES.sum()
    for step in (1, 3, 6):
        found = torch.bincount(walks[:, step], minlength=COUNT).double() / starts.numel()
        assert near(found, expected, starts.numel())


def test_steps_have_the_probabilities_of_the_chain() -> None:
    starts, power = torch.full((20_000,), 4), transitions()
    walks = khop.random_walks(GRAPH, starts, [TO] * 3, seed=5)
    expected = power[4]
    for step in (1, 2, 3):
        found = torch.bincount(walks[:, step], minlength=COUNT).double() / starts.numel()
        assert near(found, expected, starts.numel())
        expected = expected @ power
    assert set(map(tuple, walks[:, 1:3].flip(1).tolist())) <= set(PAIRS)


def test_a_walk_at_a_node_without_in_edges_ends() -> None:
    walks = khop.random_walks(GRAPH, torch.tensor([23, 22, 0]), [TO] * 3)
    assert walks[0].tolist() == [23, -1, -1, -1]
    assert walks[1].tolist() == [22, 22, 22, 22]
    assert (walks[2] >= 0).all()


def test_walks_depend_on_their_number_only_and_on_seed_and_epoch() -> None:
    starts = torch.arange(COUNT)
    whole = khop.random_walks(GRAPH, starts, [TO] * 4, seed=3)
    assert torch.equal(khop.random_walks(GRAPH, starts[7:], [TO] * 4, seed=3, first=7), whole[7:])
    assert not torch.equal(khop.random_walks(GRAPH, starts, [TO] * 4, seed=4), whole)
    assert not torch.equal(khop.random_walks(GRAPH, starts, [TO] * 4, seed=3, epoch=1), whole)
    assert khop.random_walks(GRAPH, starts[:0], [TO] * 4).shape == (0, 5)


@pytest.mark.parametrize("bias", [None, khop.Node2Vec(0.25, 4.0)])
def test_partitions_change_no_walk(tmp_path: Path, bias: khop.Node2Vec | None) -> None:
    ends = torch.tensor(PAIRS).T
    nodes = {"node": khop.NodeTable(COUNT)}
    whole = khop.write_graph(tmp_path / "whole", nodes, {TO: khop.EdgeTable(ends[0], ends[1])})
    khop.partition_graph(whole, tmp_path / "parts", 3, method="random")
    parts = khop.open_graph(tmp_path / "parts")
    originals = parts.original_ids("node")
    assert originals is not None
    starts = torch.arange(COUNT).repeat(3)
    there = khop.random_walks(parts, originals.argsort()[starts], [TO] * 4, bias=bias)
    here = khop.random_walks(khop.open_graph(whole), starts, [TO] * 4, bias=bias)
    assert torch.equal(torch.where(there < 0, there, originals[there.clamp(min=0)]), here)


def test_paths_that_do_not_fit_are_refused() -> None:
    pairs = torch.zeros(2, 1, dtype=torch.int64)
    graph = csc_graph_from_edges({"user": 1, "item": 1}, {("user", "buys", "item"): (pairs[0], pairs[1])})
    with pytest.raises(ValueError, match="must end at 'user'"):
        khop.random_walks(graph, pairs[0], ["user buys item", "user buys item"])
    with pytest.raises(ValueError, match="has no edge type"):
        khop.random_walks(graph, pairs[0], [])
    with pytest.raises(ValueError, match="there is no node 9"):
        khop.random_walks(graph, torch.tensor([9]), ["user buys item"])
