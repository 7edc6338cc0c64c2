"""What every rule promises, a user's own included. The tests of each one run PROMISES with the rule:

@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_it_keeps(promise): promise(RULE)

A rule that names columns names "weight" or "time": the graphs of the suite have these.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from contracts.graph_rules import TIMES, plain_graphs_with_columns
from contracts.graph_store import Plain, int64
from khop.api.partition import partition_graph
from khop.draw import DrawKey, Frontier, Neighbors
from khop.exchange.draw_wire import HopWire
from khop.graph.csc_graph import CscGraph
from khop.graph.folder import open_folder
from khop.graph.rule_arrays import RuleArrays
from khop.kernels.csc import Csc
from khop.kernels.edge_times import EdgeTimes
from khop.kernels.rising import Rising
from khop.kernels.sample_hop import sample_hop
from khop.partition.local_partition_graph import LocalPartitionGraph
from khop.partition.parts_folder import open_parts
from khop.rules.rule import FrontierField, Hop, NeedKind, Rule, check_frontier
from khop.schema import EdgeType, NodeType, Schema
from support.parts_as_whole import GraphAsWhole, OldIds
from support.plain_folders import in_memory, written

Drawn = Mapping[EdgeType, Neighbors]


@dataclass(frozen=True)
class Question:
    """One hop over a small graph."""

    plain: Plain
    frontier: dict[NodeType, Frontier]
    fanouts: dict[EdgeType, int]
    key: DrawKey

    def hop(self, rule: Rule) -> Hop:
        return Hop(2, self.fanouts, rule, edge_ids=True)

    def drawn(self, rule: Rule) -> Drawn:
        return in_memory(self.plain).sample_hop(self.frontier, self.hop(rule), self.key)


@st.composite
def questions(draw: st.DrawFn, rule: Rule) -> Question:
    """Frontiers with the fields that the rule reads, and fanouts of all kinds."""
    plain = draw(plain_graphs_with_columns())
    frontier = {}
    for node_type, count in plain.counts.items():
        nodes = draw(st.lists(st.integers(0, count - 1), max_size=6))
        fields: dict[str, Tensor] = {}
        if FrontierField.UNTIL in rule.frontier_fields:
            fields["until"] = int64([draw(TIMES) for _ in nodes])
        if FrontierField.TREE in rule.frontier_fields and draw(st.booleans()):
            fields["tree"] = int64([draw(st.integers(0, 99)) for _ in nodes])
        frontier[node_type] = Frontier(int64(nodes), **fields)
    fanouts = {edge_type: draw(st.integers(-1, 6)) for edge_type in plain.edges}
    return Question(plain, frontier, fanouts, DrawKey(draw(st.integers(0, 2**64 - 1))))


def rows_of(drawn: Neighbors) -> list[tuple[list[int], list[int], list[float] | None]]:
    """Nodes, edges and weights of each row."""
    ends = drawn.offsets.tolist()
    assert drawn.edges is not None
    return [
        (
            drawn.nodes[begin:end].tolist(),
            drawn.edges[begin:end].tolist(),
            None if drawn.weights is None else drawn.weights[begin:end].tolist(),
        )
        for begin, end in pairwise(ends)
    ]


def same(one: Drawn, other: Drawn) -> bool:
    return list(one) == list(other) and all(rows_of(one[t]) == rows_of(other[t]) for t in one)


def it_is_a_value(rule: Rule) -> None:
    again = pickle.loads(pickle.dumps(rule))
    assert again == rule
    assert hash(again) == hash(rule)
    assert repr(again) == repr(rule)
    with pytest.raises(AttributeError):
        rule.anything = 1  # type: ignore[attr-defined]


def drawn_edges_are_edges_of_their_rows_and_not_too_many(rule: Rule) -> None:
    @given(question=questions(rule))
    def check(question: Question) -> None:
        graph = in_memory(question.plain)
        for edge_type, found in question.drawn(rule).items():
            csc, nodes = graph.csc(edge_type), question.frontier[edge_type[2]].nodes.tolist()
            most = rule.most(question.fanouts[edge_type])
            assert len(rows_of(found)) == len(nodes)
            assert (found.weights is not None) == rule.has_weights
            for node, (sources, edges, _) in zip(nodes, rows_of(found), strict=True):
                assert most is None or len(edges) <= most
                assert all(csc.indptr[node] <= edge < csc.indptr[node + 1] for edge in edges)
                assert sources == csc.indices[edges].tolist()

    check()


def a_row_depends_on_no_other(rule: Rule) -> None:
    @given(question=questions(rule), data=st.data())
    def check(question: Question, data: st.DataObject) -> None:
        orders = {
            t: int64(data.draw(st.lists(st.sampled_from(range(of.nodes.numel())), max_size=8)))
            if of.nodes.numel()
            else int64([])
            for t, of in question.frontier.items()
        }
        some = {
            t: Frontier(of.nodes[orders[t]], **{name: field[orders[t]] for name, field in of.fields.items()})
            for t, of in question.frontier.items()
        }
        every, few = question.drawn(rule), replace(question, frontier=some).drawn(rule)
        for edge_type, found in few.items():
            rows = rows_of(every[edge_type])
            assert rows_of(found) == [rows[at] for at in orders[edge_type[2]].tolist()]

    check()


def threads_change_nothing(rule: Rule) -> None:
    @given(question=questions(rule))
    def check(question: Question) -> None:
        graph, hop = in_memory(question.plain), question.hop(rule)
        threaded = graph.sample_hop(question.frontier, replace(hop, threads=3), question.key)
        assert same(threaded, question.drawn(rule))

    check()


def partitions_change_nothing(rule: Rule) -> None:
    @settings(max_examples=6)
    @given(question=questions(rule), parts=st.integers(2, 3))
    def check(question: Question, parts: int) -> None:
        with tempfile.TemporaryDirectory() as home:
            whole = written(Path(home) / "whole", question.plain)
            partition_graph(whole, Path(home) / "parts", parts, method="random")
            ids = OldIds(open_folder(whole), open_parts(Path(home) / "parts"))
            graph = GraphAsWhole(ids, LocalPartitionGraph(ids.parts))
            cut = graph.sample_hop(question.frontier, question.hop(rule), question.key)
            opened = CscGraph.open(whole).sample_hop(question.frontier, question.hop(rule), question.key)
            assert same(cut, opened)

    check()


def a_kernel_draws_as_the_reference(rule: Rule) -> None:
    @given(question=questions(rule))
    def check(question: Question) -> None:
        drawn = question.drawn(rule)
        for edge_type, request in _requests(rule, question, _arrays(question.plain)).items():
            (alone,) = sample_hop([request], edge_ids=True)
            assert rows_of(alone) == rows_of(drawn[edge_type]) == rows_of(rule.reference(request))

    check()


def it_needs_what_it_reads(rule: Rule) -> None:
    @given(question=questions(rule))
    def check(question: Question) -> None:
        arrays = _Watched(_arrays(question.plain))
        requests = _requests(rule, question, arrays)
        needed = {(n.kind, t, n.column) for t in requests for n in rule.needs(t)}
        assert arrays.read <= needed
        for edge_type in requests:
            for need in rule.needs(edge_type):
                assert need.edge_type == edge_type
                arrays.inner.prepare(need)

    check()


def a_graph_without_its_columns_is_refused(rule: Rule) -> None:
    edge_type = ("user", "buys", "item")
    schema = Schema(("user", "item"), (edge_type,))
    columns = [need.column for need in rule.needs(edge_type) if need.column]
    if columns:
        with pytest.raises(ValueError, match=f"no column '({'|'.join(columns)})'"):
            rule.check(schema)
    else:
        rule.check(schema)


def a_field_that_it_does_not_read_is_refused_and_time_limits_are_required(rule: Rule) -> None:
    ids = int64([0])
    plain = Frontier(ids, **({"until": ids} if FrontierField.UNTIL in rule.frontier_fields else {}))
    check_frontier(rule, plain)
    for name in FrontierField:
        given_ = replace(plain, **{name.value: ids})
        if name in rule.frontier_fields:
            check_frontier(rule, given_)
        else:
            with pytest.raises(ValueError, match=r"which .* does not know"):
                check_frontier(rule, given_)
    if FrontierField.UNTIL in rule.frontier_fields:
        with pytest.raises(ValueError, match="needs time limits"):
            check_frontier(rule, Frontier(ids))


def messages_between_ranks_carry_all_of_a_draw(rule: Rule) -> None:
    @given(question=questions(rule))
    def check(question: Question) -> None:
        graph, drawn = in_memory(question.plain), question.drawn(rule)
        edges = {t: csc.num_edges for t, csc in graph.edges.items()}
        wire = HopWire.of(question.frontier, question.hop(rule), question.key, graph.counts, edges)
        spans = {t: (0, count) for t, count in graph.counts.items()}
        received = wire.frontier(wire.question(question.frontier, spans), spans)
        for node_type, of_type in received.items():
            asked = question.frontier[node_type]
            assert torch.equal(of_type.nodes, asked.nodes)
            assert list(of_type.fields) == list(asked.fields)
            assert all(torch.equal(of_type.fields[name], asked.fields[name]) for name in asked.fields)
        message = torch.empty(wire.size_of(drawn), dtype=torch.uint8)
        wire.write(drawn, message)
        rows = {t: of.nodes.numel() for t, of in question.frontier.items()}
        assert same(wire.neighbors(message, rows), drawn)

    check()


def exact_weights_are_shares_of_a_row_or_an_error_says_why(rule: Rule) -> None:
    @given(plain=plain_graphs_with_columns())
    def check(plain: Plain) -> None:
        arrays = _arrays(plain)
        for edge_type, csc in arrays.edges.items():
            weights = _exact_weights(rule, edge_type, arrays)
            if weights is None:
                continue
            assert weights.dtype == torch.float64
            assert weights.shape == (csc.num_edges,)
            sums = torch.zeros(csc.num_rows, dtype=torch.float64).index_add(0, csc.destinations(), weights)
            assert all(total == 0 or abs(total - 1) < 1e-9 for total in sums.tolist())

    check()


PROMISES: tuple[Callable[[Rule], None], ...] = (
    it_is_a_value,
    drawn_edges_are_edges_of_their_rows_and_not_too_many,
    a_row_depends_on_no_other,
    threads_change_nothing,
    partitions_change_nothing,
    a_kernel_draws_as_the_reference,
    it_needs_what_it_reads,
    a_graph_without_its_columns_is_refused,
    a_field_that_it_does_not_read_is_refused_and_time_limits_are_required,
    messages_between_ranks_carry_all_of_a_draw,
    exact_weights_are_shares_of_a_row_or_an_error_says_why,
)


def _exact_weights(rule: Rule, edge_type: EdgeType, arrays: RuleArrays) -> Tensor | None:
    """None also where the rule says that there are none."""
    try:
        return rule.exact_weights(edge_type, arrays)
    except ValueError as error:
        reason = str(error)
    assert str(rule) in reason
    return None


def _arrays(plain: Plain) -> RuleArrays:
    graph = in_memory(plain)
    return RuleArrays(graph.edges, graph.columns, graph.originals)


def _requests(rule: Rule, question: Question, arrays: RuleArrays | _Watched) -> dict[EdgeType, object]:
    hop = question.hop(rule)
    return {
        t: rule.plan(t, question.frontier[t[2]], hop, question.key, arrays)
        for t in question.fanouts
        if t[2] in question.frontier
    }


@dataclass(frozen=True)
class _Watched:
    """The arrays of a store, and which of them were read."""

    inner: RuleArrays
    read: set[tuple[NeedKind, EdgeType, str]] = field(default_factory=set)

    @property
    def edges(self) -> Mapping[EdgeType, Csc]:
        return self.inner.edges

    @property
    def original_ids(self) -> Mapping[NodeType, Tensor]:
        return self.inner.original_ids

    def column(self, edge_type: EdgeType, name: str) -> Tensor | None:
        self.read.add((NeedKind.COLUMN, edge_type, name))
        return self.inner.column(edge_type, name)

    def weight_sums(self, edge_type: EdgeType, column: str) -> Rising | None:
        self.read.add((NeedKind.WEIGHT_SUMS, edge_type, column))
        return self.inner.weight_sums(edge_type, column)

    def times(self, edge_type: EdgeType, column: str) -> Rising | None:
        self.read.add((NeedKind.TIMES, edge_type, column))
        return self.inner.times(edge_type, column)

    def own_times(self, edge_type: EdgeType, column: str) -> EdgeTimes | None:
        self.read.add((NeedKind.TIMES, edge_type, column))
        return self.inner.own_times(edge_type, column)

    def source_ids(self, edge_type: EdgeType) -> Tensor:
        self.read.add((NeedKind.SOURCE_IDS, edge_type, ""))
        return self.inner.source_ids(edge_type)
