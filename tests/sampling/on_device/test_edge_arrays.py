"""Operands of draws on the device are the rule's own arrays, and rules without a kernel are refused."""

from __future__ import annotations

import pytest
import torch

from extension.test_rule import EverySecond
from khop.draw import stream
from khop.graph.needs import WeightSums
from khop.graph.rule import Hop, Rule
from khop.graph.store import csc_graph_from_edges
from khop.kernels.triton.sample_smallest import EdgeOrder, SourceOrder
from khop.sampling.on_device.edge_arrays import edge_arrays, stream_of
from khop.sampling.rules.labor import Labor
from khop.sampling.rules.temporal import Temporal, TemporalStrategy
from khop.sampling.rules.top_k import TopK
from khop.sampling.rules.uniform import Uniform
from khop.sampling.rules.weighted import Weighted
from support.triton_rows import DEVICE

TO = ("node", "to", "node")
ENDS = (torch.tensor([0, 1, 2, 0]), torch.tensor([1, 1, 2, 2]))
COLUMNS = {TO: {"time": torch.tensor([1, 5, 2, 9]), "weight": torch.tensor([1.0, 3.0, 1.0, 1.0])}}
GRAPH = csc_graph_from_edges({"node": 3}, {TO: ENDS}, columns=COLUMNS, sort_by="time")


def hop(rule: Rule) -> Hop:
    return Hop(1, {TO: 2}, rule)


def test_each_rule_brings_its_arrays() -> None:
    plain = edge_arrays(GRAPH, TO, hop(Uniform(replacement=True)), DEVICE)
    assert (plain.replacement, plain.sums, plain.limits, plain.original_ids) == (True, None, None, None)
    assert torch.equal(plain.csc.indices.cpu(), GRAPH.csc(TO).indices)
    weighted = edge_arrays(GRAPH, TO, hop(Weighted("weight")), DEVICE)
    sums = GRAPH.draws.arrays[WeightSums(TO, "weight")]
    assert sums is not None
    assert weighted.sums is not None
    assert torch.equal(weighted.sums.cpu(), sums.values)
    timed = edge_arrays(GRAPH, TO, hop(Temporal("time", TemporalStrategy.LATEST, (7, 0))), DEVICE)
    assert timed.limits is not None
    assert (timed.limits.window, timed.limits.is_latest) == ((7, 0), True)
    assert timed.limits.times.edges is not None
    assert timed.limits.times.edges.tolist() == [1, 5, 2, 9]


def test_arrays_that_are_on_the_device_are_shared() -> None:
    first = edge_arrays(GRAPH, TO, hop(Uniform()), torch.device("cpu"))
    assert first.csc is GRAPH.csc(TO)


def test_first_edges_of_an_order_need_its_keys() -> None:
    by_weight = edge_arrays(GRAPH, TO, hop(TopK("weight")), DEVICE).order
    assert isinstance(by_weight, EdgeOrder)
    assert by_weight.keys.numel() == 4
    by_source = edge_arrays(GRAPH, TO, hop(Labor()), DEVICE).order
    assert isinstance(by_source, SourceOrder)
    assert stream_of(GRAPH, TO, hop(Labor())) == stream(1, ("node",))
    assert stream_of(GRAPH, TO, hop(Uniform())) == stream(1, TO)


def test_numbers_that_kernels_do_not_have_are_named() -> None:
    with pytest.raises(ValueError, match=r"numbers of several steps have no kernel; use kappa=1"):
        edge_arrays(GRAPH, TO, hop(Labor(kappa=4)), DEVICE)
    twice = csc_graph_from_edges({"node": 3}, {TO: (torch.tensor([0, 0]), torch.tensor([1, 1]))})
    with pytest.raises(ValueError, match="some node has two edges from the same source"):
        edge_arrays(twice, TO, hop(Labor()), DEVICE)


@pytest.mark.parametrize("rule", [EverySecond()], ids=str)
def test_a_rule_without_a_kernel_is_refused(rule: Rule) -> None:
    with pytest.raises(ValueError, match="no kernel draws by it on a device; sample on the CPU"):
        edge_arrays(GRAPH, TO, hop(rule), DEVICE)
