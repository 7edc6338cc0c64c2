"""What every graph store promises of weights and times; used as contracts/graph_store.py says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.graph_store import BOUGHT_BY, BUYS, LIKE, SHOP, Make, Plain, int64, plain_graphs, rows_of
from khop.draw import DrawKey, Frontier, stream
from khop.rules.rule import Hop, Rule
from khop.rules.temporal import Temporal, TemporalStrategy
from khop.rules.uniform import Uniform
from khop.rules.weighted import Weighted
from khop.schema import EdgeType, NodeType
from reference.sampling import Row, allowed_range, whole_weights

KEY = DrawKey(0x1234_5678_9ABC_DEF0)
TIMES, WEIGHTS = st.integers(-9, 9), st.sampled_from([0.0, 0.5, 1.0, 3.0, 1e-6])


@st.composite
def plain_graphs_with_columns(draw: st.DrawFn) -> Plain:
    """Times of edges, of nodes, of both or of neither; weights of some edge types."""
    plain = draw(plain_graphs())
    columns: dict[NodeType | EdgeType, dict[str, list[float]]] = {
        "user": {"time": []},
        BUYS: {"weight": [], "time": []},
    }
    for type_ in [*plain.counts, *plain.edges]:
        columns.setdefault(type_, {})
        size = plain.counts[type_] if isinstance(type_, str) else len(plain.edges[type_])
        if type_ in ("user", BUYS) or draw(st.booleans()):
            columns[type_]["time"] = draw(st.lists(TIMES, min_size=size, max_size=size))
        if type_ == BUYS or (isinstance(type_, tuple) and draw(st.booleans())):
            columns[type_]["weight"] = draw(st.lists(WEIGHTS, min_size=size, max_size=size))
    return replace(plain, columns=columns)


@dataclass(frozen=True)
class Edge:
    """One edge as the specification sees it."""

    source: int
    time: int | None
    weight: float | None


def rows_by_time(plain: Plain, edge_type: EdgeType) -> list[list[Edge]]:
    """The rows of an edge type, by time where it has one: its own, its source's, or the later."""
    rows: list[list[Edge]] = [[] for _ in range(plain.counts[edge_type[2]])]
    own, sources = (plain.columns.get(type_, {}) for type_ in (edge_type, edge_type[0]))
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
    """Positions within the row."""
    begin, end = 0, len(row)
    if isinstance(rule, Temporal):
        if row and row[0].time is not None:
            begin, end = allowed_range([edge.time or 0 for edge in row], limit, rule.window)
            if rule.strategy is TemporalStrategy.LATEST:
                return list(range(begin if fanout == -1 else max(begin, end - fanout), end))
        rule = rule.inner
    draws = replace(draws, degree=end - begin)
    if isinstance(rule, Weighted) and row and row[0].weight is not None:
        whole = whole_weights([edge.weight or 0 for edge in row])[begin:end]
        return [begin + pick for pick in draws.weighted_picks(fanout, rule.replacement, whole)]
    return [begin + pick for pick in draws.picks(fanout, rule.replacement)]


INNER = st.builds(Uniform, st.booleans()) | st.builds(Weighted, st.just("weight"), st.booleans())
WINDOWS = st.none() | st.tuples(st.integers(4, 9), st.integers(-4, 0))
TEMPORAL = st.builds(Temporal, st.just("time"), window=WINDOWS, inner=INNER) | st.builds(
    Temporal, st.just("time"), st.just(TemporalStrategy.LATEST), WINDOWS
)


def draws_by_weight_and_time_are_those_of_the_specification(make: Make) -> None:
    @given(
        plain=plain_graphs_with_columns(),
        rule=INNER | TEMPORAL,
        key=st.integers(0, 2**64 - 1),
        data=st.data(),
    )
    def check(plain: Plain, rule: Rule, key: int, data: st.DataObject) -> None:
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
        drawn = make(plain).sample_hop(frontier, hop, DrawKey(key))
        for edge_type, fanout in fanouts.items():
            rows, to = rows_by_time(plain, edge_type), edge_type[2]
            originals, starts = plain.original_ids.get(to), [0, *accumulate(map(len, rows))]
            expected = []
            for node, limit in zip(nodes[to], limits[to], strict=True):
                draws = Row(
                    key,
                    originals[node] if originals else node,
                    stream(hop.number, edge_type),
                    len(rows[node]),
                )
                expected.append([(node, at) for at in specified(rows[node], limit, rule, fanout, draws)])
            edges = [pair for row in expected for pair in row]
            assert drawn[edge_type].offsets.tolist() == [0, *accumulate(map(len, expected))]
            assert drawn[edge_type].nodes.tolist() == [rows[node][at].source for node, at in edges]
            assert drawn[edge_type].edges.tolist() == [starts[node] + at for node, at in edges]

    check()


def with_columns(**columns: list[float]) -> Plain:
    """The shop, with columns of the edges LIKE."""
    return replace(SHOP, columns={LIKE: columns})


LIKES = len(SHOP.edges[LIKE])


def a_rule_with_an_unknown_column_is_named(make: Make) -> None:
    graph = make(with_columns(weight=[1.0] * LIKES))
    frontier = {"item": Frontier(int64([0]), int64([5]))}
    with pytest.raises(ValueError, match=r"Weighted\(column='cost'.*no column 'cost'; there are .*'weight'"):
        graph.sample_hop({"item": Frontier(int64([0]))}, Hop(1, {LIKE: 2}, Weighted("cost")), KEY)
    with pytest.raises(ValueError, match=r"Temporal\(column='when'.*no column 'when'"):
        graph.sample_hop(frontier, Hop(1, {LIKE: 2}, Temporal("when")), KEY)


def a_bad_weight_is_named(make: Make) -> None:
    graph = make(with_columns(weight=[1.0] * (LIKES - 1) + [-2.0]))
    with pytest.raises(ValueError, match=r"like.*column 'weight': weight -2\.0 at position \d+: must be"):
        graph.sample_hop({"item": Frontier(int64([0]))}, Hop(1, {LIKE: 2}, Weighted("weight")), KEY)


def a_temporal_rule_needs_limits(make: Make) -> None:
    graph = make(with_columns(time=[1] * LIKES))
    with pytest.raises(ValueError, match=r"like.*Temporal.* needs time limits"):
        graph.sample_hop({"item": Frontier(int64([0]))}, Hop(1, {LIKE: 2}, Temporal("time")), KEY)


def edge_types_without_the_column_are_drawn_uniformly(make: Make) -> None:
    graph, hop = (
        make(with_columns(weight=[1.0] * LIKES, time=[3] * LIKES)),
        Hop(1, {BUYS: 3, BOUGHT_BY: 3}, Uniform()),
    )
    frontier = {"item": Frontier(int64([0, 4])), "user": Frontier(int64([1]))}
    plain = graph.sample_hop(frontier, hop, KEY)
    limited = {t: replace(of, until=of.nodes * 0 - 99) for t, of in frontier.items()}
    weighted = graph.sample_hop(frontier, replace(hop, rule=Weighted("weight")), KEY)
    temporal = graph.sample_hop(limited, replace(hop, rule=Temporal("time")), KEY)
    for edge_type, drawn in plain.items():
        assert rows_of(weighted[edge_type]) == rows_of(temporal[edge_type]) == rows_of(drawn)


PROMISES: tuple[Callable[[Make], None], ...] = (
    draws_by_weight_and_time_are_those_of_the_specification,
    a_rule_with_an_unknown_column_is_named,
    a_bad_weight_is_named,
    a_temporal_rule_needs_limits,
    edge_types_without_the_column_are_drawn_uniformly,
)
