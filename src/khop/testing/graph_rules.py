"""Contract suite for graph stores: sampling by weight and by time.

A test takes a function that makes the tested store from a small graph, which has edges and columns as lists.

Example:
    >>> from khop.testing import graph_rules
    >>> for promise in graph_rules.PROMISES:
    ...     promise(lambda graph: graph.in_memory())
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate

from hypothesis import strategies as st

from khop.draw import DrawKey, Frontier, stream
from khop.graph.needs import Need
from khop.graph.rule import Hop, Rule, RuleBase
from khop.graph.store import GraphStore
from khop.sampling.rules.temporal import Temporal, TemporalStrategy
from khop.sampling.rules.uniform import UNIFORM
from khop.sampling.rules.weighted import drawn_by, weighted_in
from khop.schema import EdgeType
from khop.testing.graph_store import check_rows, rows_of
from khop.testing.graphs import (
    BOUGHT_BY,
    BUYS,
    LIKE,
    SHOP,
    TIMES,
    PlainGraph,
    int64,
    plain_graphs_with_columns,
)
from khop.testing.promises import examples, expect_equal, expect_refusal, promise
from khop.testing.reference import Row, allowed_range, whole_weights

KEY = DrawKey(0x1234_5678_9ABC_DEF0)
Make = Callable[[PlainGraph], GraphStore]


@dataclass(frozen=True)
class Edge:
    """One edge with its time and weight."""

    source: int
    time: int | None
    weight: float | None


def rows_by_time(plain: PlainGraph, edge_type: EdgeType) -> list[list[Edge]]:
    """Return rows sorted by the time of the edge, of its source, or the later of both."""
    rows: list[list[Edge]] = [[] for _ in range(plain.counts[edge_type[2]])]
    own, sources = plain.columns.get(edge_type, {}), plain.columns.get(edge_type[0], {})
    for number, (source, destination) in enumerate(plain.edges[edge_type]):
        times = [
            column[at] for column, at in ((own.get("time"), number), (sources.get("time"), source)) if column
        ]
        weights = own.get("weight")
        rows[destination].append(
            Edge(source, max(map(int, times), default=None), weights[number] if weights else None)
        )
    return [sorted(row, key=lambda edge: edge.time or 0) for row in rows]


def specified(row: list[Edge], limit: int, rule: Rule, fanout: int, draws: Row) -> list[int]:
    """Return positions within the row."""
    begin, end = 0, len(row)
    if isinstance(rule, Temporal):
        if row and row[0].time is not None:
            begin, end = allowed_range([edge.time or 0 for edge in row], limit, rule.window)
            if rule.strategy is TemporalStrategy.LATEST:
                return list(range(begin if fanout == -1 else max(begin, end - fanout), end))
        rule = rule.inner
    draws = replace(draws, degree=end - begin)
    assert isinstance(rule, RuleBase)
    if weighted_in(rule) is not None and row and row[0].weight is not None:
        whole = whole_weights([edge.weight or 0 for edge in row])[begin:end]
        return [begin + pick for pick in draws.weighted_picks(fanout, rule.replacement, whole)]
    return [begin + pick for pick in draws.picks(fanout, rule.replacement)]


INNER = st.builds(drawn_by, st.none() | st.just("weight"), st.booleans())
WINDOWS = st.none() | st.tuples(st.integers(4, 9), st.integers(-4, 0))
TEMPORAL = st.builds(Temporal, st.just("time"), window=WINDOWS, inner=INNER) | st.builds(
    Temporal, st.just("time"), st.just(TemporalStrategy.LATEST), WINDOWS
)


@promise
def draws_by_weight_and_time_follow_the_specification(make: Make) -> None:
    """Sample by weight and time as docs/randomness.md specifies, with and without a call of `prepare`."""

    @examples(
        plain=plain_graphs_with_columns(),
        rule=INNER | TEMPORAL,
        key=st.integers(0, 2**64 - 1),
        data=st.data(),
    )
    def check(plain: PlainGraph, rule: Rule, key: int, data: st.DataObject) -> None:
        nodes, limits = {}, {}
        for node_type, count in plain.counts.items():
            nodes[node_type] = data.draw(st.lists(st.integers(0, count - 1), max_size=6))
            size = len(nodes[node_type])
            limits[node_type] = data.draw(st.lists(TIMES, min_size=size, max_size=size))
        frontier = {
            t: Frontier(int64(ids), int64(limits[t]) if isinstance(rule, Temporal) else None)
            for t, ids in nodes.items()
        }
        fanouts = {edge_type: data.draw(st.integers(-1, 6)) for edge_type in plain.edges}
        hop = Hop(data.draw(st.integers(1, 9)), fanouts, rule, edge_ids=True)
        graph = make(plain)
        if data.draw(st.booleans()):
            needs: list[Need] = [need for t in plain.edges for need in rule.needs(t)]
            graph.prepare(needs)
        drawn = graph.sample_hop(frontier, hop, DrawKey(key))
        for edge_type in fanouts:
            to = edge_type[2]
            expected = _expected(plain, edge_type, hop, key, nodes[to], limits[to])
            # Rows follow the times, so positions count in sorted rows.
            by_time = [
                (edge.source, node) for node, row in enumerate(rows_by_time(plain, edge_type)) for edge in row
            ]
            check_rows(edge_type, PlainGraph(plain.counts, {edge_type: by_time}), drawn[edge_type], expected)

    check()


def _expected(
    plain: PlainGraph, edge_type: EdgeType, hop: Hop, key: int, nodes: list[int], limits: list[int]
) -> list[list[int]]:
    """Return the positions of the drawn edges of each row, in CSC order."""
    rows, originals = rows_by_time(plain, edge_type), plain.original_ids.get(edge_type[2])
    starts, word = [0, *accumulate(map(len, rows))], stream(hop.number, edge_type)
    expected = []
    for node, limit in zip(nodes, limits, strict=True):
        draws = Row(key, originals[node] if originals else node, word, len(rows[node]))
        picks = specified(rows[node], limit, hop.rule, hop.fanouts[edge_type], draws)
        expected.append([starts[node] + at for at in picks])
    return expected


def with_columns(**columns: list[float]) -> PlainGraph:
    """Return the shop with columns of the edges LIKE."""
    return replace(SHOP, columns={LIKE: columns})


LIKES = len(SHOP.edges[LIKE])


@promise
def a_missing_column_is_named(make: Make) -> None:
    """Raise ValueError that names the rule, the column that it needs and the existing columns."""
    graph = make(with_columns(weight=[1.0] * LIKES))
    frontier = {"item": Frontier(int64([0]))}
    limited = {"item": Frontier(int64([0]), int64([5]))}
    hop = Hop(1, {LIKE: 2}, drawn_by("cost", replacement=False))
    expect_refusal(lambda: graph.sample_hop(frontier, hop, KEY), f"{hop.rule}", "cost", "weight")
    temporal = replace(hop, rule=Temporal("when"))
    expect_refusal(lambda: graph.sample_hop(limited, temporal, KEY), f"{temporal.rule}", "Temporal", "when")


@promise
def a_wrong_weight_is_named(make: Make) -> None:
    """Raise ValueError that names a negative weight, its column and its edge type."""
    graph = make(with_columns(weight=[1.0] * (LIKES - 1) + [-2.0]))
    hop = Hop(1, {LIKE: 2}, drawn_by("weight", replacement=False))
    frontier = {"item": Frontier(int64([0]))}
    expect_refusal(lambda: graph.sample_hop(frontier, hop, KEY), "weight -2.0", "like", "weight", "-2.0")


@promise
def a_temporal_rule_needs_limits(make: Make) -> None:
    """Raise ValueError for a frontier without time limits if the rule reads them."""
    graph, hop = make(with_columns(time=[1] * LIKES)), Hop(1, {LIKE: 2}, Temporal("time"))
    frontier = {"item": Frontier(int64([0]))}
    expect_refusal(lambda: graph.sample_hop(frontier, hop, KEY), "no time limits", "like", "Temporal", "time")


@promise
def edge_types_without_the_column_are_drawn_uniformly(make: Make) -> None:
    """Sample uniformly from edge types that do not have the column of the rule."""
    graph = make(with_columns(weight=[1.0] * LIKES, time=[3] * LIKES))
    hop = Hop(1, {BUYS: 3, BOUGHT_BY: 3}, UNIFORM)
    frontier = {"item": Frontier(int64([0, 4])), "user": Frontier(int64([1]))}
    limited = {t: replace(of, until=of.nodes * 0 - 99) for t, of in frontier.items()}
    plain = graph.sample_hop(frontier, hop, KEY)
    weighted = graph.sample_hop(frontier, replace(hop, rule=drawn_by("weight", replacement=False)), KEY)
    temporal = graph.sample_hop(limited, replace(hop, rule=Temporal("time")), KEY)
    for edge_type, drawn in plain.items():
        expect_equal(f"rows of {edge_type} by weight", rows_of(weighted[edge_type]), rows_of(drawn))
        expect_equal(f"rows of {edge_type} by time", rows_of(temporal[edge_type]), rows_of(drawn))


PROMISES: tuple[Callable[[Make], None], ...] = (
    draws_by_weight_and_time_follow_the_specification,
    a_missing_column_is_named,
    a_wrong_weight_is_named,
    a_temporal_rule_needs_limits,
    edge_types_without_the_column_are_drawn_uniformly,
)
