"""`TopK` keeps the promises of every rule and takes the edges with the largest values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.draw import DrawKey, Frontier
from khop.graph.needs import RuleArrays
from khop.graph.rule import Hop, Rule
from khop.graph.store import csc_graph_from_edges
from khop.sampling.rules.sum import Sum, SymmetricSum
from khop.sampling.rules.temporal import Temporal
from khop.sampling.rules.top_k import TopK
from khop.schema import ColumnSpec, Schema
from khop.testing.rule import PROMISES

TO = ("node", "to", "node")
RULES = [TopK("weight"), Sum(TopK("weight")), Temporal("time", inner=TopK("weight"))]
VALUES = st.sampled_from([0.0, 1.0, 1.0, -2.5, float("inf")]) | st.floats(-100, 100)


@pytest.mark.core(9)
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("keeps", PROMISES, ids=lambda keeps: keeps.__name__)
def test_it_keeps_the_promises_of_a_rule(keeps: Callable[[Rule], None], rule: Rule) -> None:
    keeps(rule)


@given(values=st.lists(VALUES, max_size=60), fanout=st.integers(-1, 30))
def test_a_row_gives_the_first_edges_of_its_sorted_values(values: list[float], fanout: int) -> None:
    count = len(values)
    ends = torch.arange(count), torch.zeros(count, dtype=torch.int64)
    columns = {TO: {"w": torch.tensor(values, dtype=torch.float64)}}
    graph = csc_graph_from_edges({"node": count + 1}, {TO: ends}, columns=columns)
    hop = Hop(1, {TO: fanout}, TopK("w"), edge_ids=True)
    found = graph.sample_hop({"node": Frontier(torch.tensor([0]))}, hop, DrawKey(1))[TO]
    most = count if fanout < 0 else fanout
    expected = sorted(sorted(range(count), key=lambda at: -values[at])[:most])
    assert found.edges is not None
    assert found.edges.tolist() == expected


def test_a_value_that_is_no_number_is_named() -> None:
    ends = torch.tensor([1, 2]), torch.tensor([0, 0])
    columns = {TO: {"w": torch.tensor([1.0, float("nan")])}}
    graph = csc_graph_from_edges({"node": 3}, {TO: ends}, columns=columns)
    with pytest.raises(ValueError, match="column 'w': nan at position 1: must be a number"):
        graph.sample_hop({"node": Frontier(torch.tensor([0]))}, Hop(1, {TO: 1}, TopK("w")), DrawKey(1))


def test_it_states_that_it_estimates_no_mean() -> None:
    graph = csc_graph_from_edges({"node": 3}, {TO: (torch.tensor([1, 2]), torch.tensor([0, 0]))})
    with pytest.raises(ValueError, match="exact inference uses the fanouts of training"):
        TopK("w").exact_weights(TO, RuleArrays(graph.edges, graph.columns))
    with pytest.raises(ValueError, match="column 5: must be the name of a column"):
        TopK(5)  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", [TopK("w"), Sum(TopK("w")), SymmetricSum(TopK("w"))], ids=str)
def test_exact_inference_has_the_fanout_of_training_where_the_column_is(rule: Rule) -> None:
    other = ("node", "other", "node")
    schema = Schema(("node",), (TO, other), columns={TO: {"w": ColumnSpec("float32", ())}})
    assert [rule.exact_fanout(schema, TO, fanout) for fanout in (3, 0, -1)] == [3, 0, -1]
    assert rule.exact_fanout(schema, other, 3) == -1
