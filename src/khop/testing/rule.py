"""Contract suite for sampling rules: samples of one hop of small graphs, and the mean of many samples.

A test takes the rule. All graphs of the suite have the edge columns "weight" and "time" for the rule to read.

Example:
    >>> from khop.testing import rule
    >>> for promise in rule.PROMISES[:3]:
    ...     promise(khop.Weighted("weight"))
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import FrozenInstanceError, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from khop.api.partition import partition_graph
from khop.distributed.exchange.draw_wire import HopWire
from khop.draw import DrawKey, Frontier, Neighbors
from khop.graph.needs import Arrays, Made, RuleArrays, RuleNeed
from khop.graph.partitions.local_partitions import LocalPartitionGraph
from khop.graph.partitions.parts_folder import open_parts
from khop.graph.rule import FrontierField, Hop, Rule
from khop.graph.store import CscGraph
from khop.kernels.draw_request import DrawRequest
from khop.kernels.sample_hop import sample_hop
from khop.sampling.rules.temporal import TemporalStrategy
from khop.schema import ColumnSpec, EdgeType, NodeType, Schema
from khop.testing.graphs import BUYS, PlainGraph, int64, plain_graphs_with_columns
from khop.testing.graphs import TIMES as EDGE_TIMES
from khop.testing.promises import examples, expect, expect_equal, expect_refusal, promise

Drawn = Mapping[EdgeType, Neighbors]
Row = tuple[list[int], list[int], list[float] | None]


@dataclass(frozen=True)
class Question:
    """One hop over a small graph."""

    plain: PlainGraph
    frontier: dict[NodeType, Frontier]
    fanouts: dict[EdgeType, int]
    key: DrawKey

    def hop(self, rule: Rule) -> Hop:
        """Return the hop by a rule."""
        return Hop(2, self.fanouts, rule, edge_ids=True)

    def drawn(self, rule: Rule) -> Drawn:
        """Draw from khop's store of the graph."""
        return self.plain.in_memory().sample_hop(self.frontier, self.hop(rule), self.key)


@st.composite
def questions(draw: st.DrawFn, rule: Rule) -> Question:
    """Generate frontiers with the fields that the rule reads, and fanouts of all kinds."""
    plain = draw(plain_graphs_with_columns())
    frontier = {}
    for node_type, count in plain.counts.items():
        nodes = draw(st.lists(st.integers(0, count - 1), max_size=6))
        fields: dict[str, Tensor] = {}
        if FrontierField.UNTIL in rule.frontier_fields:
            fields["until"] = int64([draw(EDGE_TIMES) for _ in nodes])
        if FrontierField.TREE in rule.frontier_fields and draw(st.booleans()):
            fields["tree"] = int64([draw(st.integers(0, 99)) for _ in nodes])
        frontier[node_type] = Frontier(int64(nodes), **fields)
    fanouts = {edge_type: draw(st.integers(-1, 6)) for edge_type in plain.edges}
    return Question(plain, frontier, fanouts, DrawKey(draw(st.integers(0, 2**64 - 1))))


def rows_of(drawn: Neighbors) -> list[Row]:
    """Return nodes, edges and weights of each row."""
    assert drawn.edges is not None
    return [
        (
            drawn.nodes[begin:end].tolist(),
            drawn.edges[begin:end].tolist(),
            None if drawn.weights is None else drawn.weights[begin:end].tolist(),
        )
        for begin, end in pairwise(drawn.offsets.tolist())
    ]


def sorted_edges(drawn: Neighbors) -> list[list[tuple[int, float]]]:
    """Return the edges of each row with their weights, 0 if there are none, in ascending order."""
    return [
        sorted(zip(edges, weights or [0.0] * len(edges), strict=True)) for _, edges, weights in rows_of(drawn)
    ]


def expect_same(what: str, one: Drawn, other: Drawn) -> None:
    """Raise AssertionError unless two results of a hop are equal."""
    expect_equal(f"edge types {what}", list(one), list(other))
    for edge_type, found in one.items():
        expect_equal(f"rows of {edge_type} {what}", rows_of(found), rows_of(other[edge_type]))


WEIGHTS, TIMES, ALLOWED = [2.0, 0.0, 0.5, 1.0, 4.0, 1.0], [0, 0, 1, 1, 1, 2], 1
ROWS, KEYS, FANOUT = 100, 20, 2


@promise
def uniform_rules_draw_all_edges_alike(rule: Rule) -> None:
    """Set `is_uniform` only if every edge of a row is sampled with equal probability."""
    if not rule.is_uniform:
        return
    edges, draws, fanout = 6, 600, 2
    columns: dict[NodeType | EdgeType, dict[str, list[float]]] = {
        BUYS: {"weight": [2.0**edge for edge in range(edges)], "time": list(range(edges))}
    }
    plain = PlainGraph({"user": edges, "item": 1}, {BUYS: [(edge, 0) for edge in range(edges)]}, {}, columns)
    graph, hop = plain.in_memory(), Hop(1, {BUYS: fanout}, rule, edge_ids=True)
    item = int64([0])
    frontier = {
        "item": Frontier(item, until=item + edges if FrontierField.UNTIL in rule.frontier_fields else None)
    }
    counts = torch.zeros(edges, dtype=torch.int64)
    for number in range(draws):
        counts += torch.bincount(
            graph.sample_hop(frontier, hop, DrawKey(number))[BUYS].nodes, minlength=edges
        )
    # The keys are fixed, so the test is deterministic. 60 is five standard deviations of a fair draw.
    even = draws * fanout // edges
    is_even = bool(((counts - even).abs() <= 60).all())
    expect(is_even, f"edges of a row are drawn {counts.tolist()} times, must be near {even} each")


@promise
def draws_average_to_exact_weights(rule: Rule) -> None:
    """Return weights whose mean over 2,000 samples is `exact_weights`, unless that raises an error.

    For `Temporal`, the mean is compared with `exact_weights` of the inner rule.
    """
    graph = _equal_rows().in_memory()
    if not _estimates(rule, RuleArrays(graph.edges, graph.columns)):
        return
    exact = _weights(graph, rule, -1, DrawKey(0))[0]
    drawn = torch.cat([_weights(graph, rule, FANOUT, DrawKey(key)) for key in range(KEYS)])
    # The keys are fixed, so the test is deterministic. Five standard errors, and the rounding of float32.
    most = 5 * drawn.std(0) / drawn.shape[0] ** 0.5 + 1e-5
    mean = drawn.mean(0)
    is_near = bool(((mean - exact).abs() <= most).all())
    expect(is_near, f"weights of edges are {mean.tolist()} in the mean of draws, must be {exact.tolist()}")


def _equal_rows() -> PlainGraph:
    """Return rows of six edges with the same weights and times, each with separate sources.

    The last two edges within a time limit of `ALLOWED` have the same source.
    """
    places = [0, 1, 2, 3, 3, 4]
    edges = [(5 * item + place, item) for item in range(ROWS) for place in places]
    columns: dict[NodeType | EdgeType, dict[str, list[float]]] = {
        BUYS: {"weight": WEIGHTS * ROWS, "time": [*map(float, TIMES)] * ROWS}
    }
    return PlainGraph({"user": 5 * ROWS, "item": ROWS}, {BUYS: edges}, {}, columns)


def _weights(graph: CscGraph, rule: Rule, fanout: int, key: DrawKey) -> Tensor:
    """Return the weight of each edge in the draw of each row, float64 (rows, 6); 0 if it is not drawn."""
    rows = torch.arange(ROWS)
    until = torch.full_like(rows, ALLOWED) if FrontierField.UNTIL in rule.frontier_fields else None
    tree = rows if FrontierField.TREE in rule.frontier_fields else None
    hop = Hop(1, {BUYS: fanout}, rule, edge_ids=True)
    drawn = graph.sample_hop({"item": Frontier(rows, until, tree)}, hop, key)[BUYS]
    assert drawn.edges is not None
    weights = drawn.weights
    if weights is None:
        weights = drawn.by_row(drawn.offsets.diff().double().reciprocal())
    found = torch.zeros(ROWS * len(WEIGHTS), dtype=torch.float64)
    return found.index_add_(0, drawn.edges, weights.double()).view(ROWS, len(WEIGHTS))


def _estimates(rule: Rule, arrays: RuleArrays) -> bool:
    """Return True if draws estimate coefficients of all edges, within `Temporal` of the allowed ones."""
    strategy, inner = getattr(rule, "strategy", None), getattr(rule, "inner", None)
    if strategy is not None and inner is not None:
        return strategy is TemporalStrategy.SAMPLE and _estimates(inner, arrays)
    try:
        rule.exact_weights(BUYS, arrays)
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class WatchedFrontier(Frontier):
    """A frontier, and the names of its fields that were read."""

    read: set[str] = field(default_factory=set)

    def __getattribute__(self, name: str) -> object:
        """Record the name if it is a field other than the nodes."""
        if name in ("until", "tree"):
            super().__getattribute__("read").add(name)
        return super().__getattribute__(name)


class WatchedArrays(Arrays):
    """The arrays of a store, and the needs of those that were read."""

    def __init__(self, inner: RuleArrays) -> None:
        self.edges, self.original_ids = inner.edges, inner.original_ids
        self.inner = inner
        self.read: set[RuleNeed[Any]] = set()

    def __getitem__(self, need: RuleNeed[Made]) -> Made | None:
        """Return an array, and record its need."""
        self.read.add(need)
        return self.inner[need]


FEW = 6  # examples of promises that write folders or draw many rows
LARGE = 800  # rows of a frontier that several threads share


@promise
def it_is_a_value(rule: Rule) -> None:
    """Be a frozen value: a pickled copy is equal, with the same hash and text."""
    again = pickle.loads(pickle.dumps(rule))
    expect_equal("the unpickled rule", again, rule)
    expect_equal("hash of the unpickled rule", hash(again), hash(rule))
    expect_equal("text of the unpickled rule", repr(again), repr(rule))
    try:
        rule.anything = 1  # type: ignore[attr-defined]
    except (FrozenInstanceError, AttributeError):
        return
    raise AssertionError("an attribute was set, must be a frozen dataclass")


@promise
def drawn_edges_belong_to_their_rows(rule: Rule) -> None:
    """Sample at most `most(fanout)` edges of each row.

    They have weights only if `has_weights` is True, and times only if `has_times` is True. If `has_paths` is
    True, `has_times` must be True.
    """
    expect(rule.has_times or not rule.has_paths, "has_paths without has_times, must have both")

    @examples(question=questions(rule))
    def check(question: Question) -> None:
        graph = question.plain.in_memory()
        for edge_type, found in question.drawn(rule).items():
            csc, nodes = graph.csc(edge_type), question.frontier[edge_type[2]].nodes.tolist()
            most, rows = rule.most(question.fanouts[edge_type]), rows_of(found)
            expect_equal("number of rows", len(rows), len(nodes))
            stated = rule.has_weights(question.fanouts[edge_type])
            expect_equal("has weights", found.weights is not None, stated)
            expect_equal("has times", found.times is not None, rule.has_times)
            for node, (sources, edges, _) in zip(nodes, rows, strict=True):
                expect(most is None or len(edges) <= most, f"{len(edges)} edges of a row, most is {most}")
                begin, end = csc.indptr[node : node + 2].tolist()
                is_own = all(begin <= edge < end for edge in edges)
                expect(is_own, f"edges {edges} of node {node}, must be in [{begin}, {end})")
                expect_equal(f"sources of edges {edges}", sources, csc.indices[edges].tolist())

    check()


@promise
def a_row_depends_on_no_other(rule: Rule) -> None:
    """Sample the same neighbors for a row, regardless of the other rows in the frontier."""

    @examples(question=questions(rule), data=st.data())
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
            expected = [rows[at] for at in orders[edge_type[2]].tolist()]
            expect_equal(f"rows of {edge_type} in another frontier", rows_of(found), expected)

    check()


@promise
def threads_change_no_draw(rule: Rule) -> None:
    """Sample the same neighbors with any number of threads."""

    @examples(FEW, question=questions(rule))
    def check(question: Question) -> None:
        frontier = {t: _large(rule, count) for t, count in question.plain.counts.items()}
        large = replace(question, frontier=frontier)
        threaded = replace(large.hop(rule), threads=3)
        drawn = large.plain.in_memory().sample_hop(large.frontier, threaded, large.key)
        expect_same("with three threads", drawn, large.drawn(rule))

    check()


def _large(rule: Rule, count: int) -> Frontier:
    """Return a frontier that several threads share: khop's kernels give a thread 256 rows or more."""
    places = torch.arange(LARGE)
    until = places % 19 - 9 if FrontierField.UNTIL in rule.frontier_fields else None
    tree = places % 100 if FrontierField.TREE in rule.frontier_fields else None
    return Frontier(places % count, until, tree)


@promise
def partitions_change_no_draw(rule: Rule) -> None:
    """Sample the same sources with the same weights from a partitioned graph."""

    @examples(FEW, question=questions(rule), parts=st.integers(2, 3))
    def check(question: Question, parts: int) -> None:
        with tempfile.TemporaryDirectory() as home:
            whole = question.plain.written(Path(home) / "whole")
            partition_graph(whole, Path(home) / "parts", parts, method="random")
            graph = LocalPartitionGraph(open_parts(Path(home) / "parts"))
            old = {t: _old_ids(question.plain, graph, t) for t in question.plain.counts}
            new = {t: ids.argsort() for t, ids in old.items()}
            frontier = {t: replace(of, nodes=new[t][of.nodes]) for t, of in question.frontier.items()}
            drawn = graph.sample_hop(frontier, question.hop(rule), question.key)
            for edge_type, expected in question.drawn(rule).items():
                nodes = old[edge_type[0]][drawn[edge_type].nodes.long()]
                found = replace(drawn[edge_type], nodes=nodes, edges=expected.edges)
                expect_same("from partitions", {edge_type: found}, {edge_type: expected})

    check()


def _old_ids(plain: PlainGraph, graph: LocalPartitionGraph, node_type: NodeType) -> Tensor:
    """Return the id in the graph before partitioning of each node."""
    originals = graph.original_ids(node_type)
    assert originals is not None  # partitioning renumbers
    before = plain.original_ids.get(node_type) or list(range(plain.counts[node_type]))
    return int64([before.index(original) for original in originals.tolist()])


@promise
def a_kernel_draws_as_the_reference(rule: Rule) -> None:
    """Sample the same neighbors with the kernel of `plan` as with `reference`."""

    @examples(question=questions(rule))
    def check(question: Question) -> None:
        drawn = question.drawn(rule)
        for edge_type, request in _requests(rule, question, _arrays(question.plain)).items():
            (alone,) = sample_hop([request], edge_ids=True)
            rows = rows_of(rule.reference(request))
            expect_equal(f"rows of {edge_type} by sample_hop", rows_of(alone), rows)
            expect_equal(f"rows of {edge_type} by the store", rows_of(drawn[edge_type]), rows)

    check()


@promise
def needs_name_all_arrays_that_are_read(rule: Rule) -> None:
    """List every array that `plan` reads in `needs`."""

    @examples(question=questions(rule))
    def check(question: Question) -> None:
        arrays = WatchedArrays(_arrays(question.plain))
        requests = _requests(rule, question, arrays)
        needed = {need for t in requests for need in rule.needs(t)}
        expect(arrays.read <= needed, f"plan reads {arrays.read - needed}, which are not in needs")
        for edge_type in requests:
            for need in rule.needs(edge_type):
                expect_equal("edge type of a need", need.edge_type, edge_type)
                _ = arrays.inner[need]

    check()


@promise
def a_graph_without_its_columns_is_refused(rule: Rule) -> None:
    """Accept a graph with the required columns in `check`; raise ValueError that names a missing column."""
    needs = {need.column: need for need in rule.needs(BUYS) if need.column}
    specs = {
        column: ColumnSpec("int64" if need.of_integers else "float32", ()) for column, need in needs.items()
    }

    def check(columns: Collection[str]) -> None:
        has: dict[NodeType | EdgeType, dict[str, ColumnSpec]] = {
            BUYS: {name: specs[name] for name in columns}
        }
        rule.check(Schema(("user", "item"), (BUYS,), columns=has))

    try:
        check(specs)
    except ValueError as error:
        raise AssertionError(f"check refuses a graph with the columns {list(specs)}: {error}") from error
    for column in specs:
        expect_refusal(lambda: check(specs.keys() - {column}), f"check without column {column!r}", column)  # noqa: B023


@promise
def frontier_fields_are_those_that_it_reads(rule: Rule) -> None:
    """List time limits in `frontier_fields` if and only if `plan` reads them."""
    fields = rule.frontier_fields
    expect(fields <= set(FrontierField), f"frontier_fields are {set(fields)}, must be some of FrontierField")
    is_read: set[bool] = set()

    @examples(question=questions(rule))
    def check(question: Question) -> None:
        watched = {
            t: WatchedFrontier(of.nodes, of.nodes if of.until is None else of.until)
            for t, of in question.frontier.items()
        }
        _requests(rule, replace(question, frontier=dict(watched)), _arrays(question.plain))
        is_read.update(FrontierField.UNTIL in of.read for of in watched.values())

    check()
    named = FrontierField.UNTIL in fields
    expect(not named or True in is_read, "frontier_fields has the time limits, but no plan reads them")
    expect(named or True not in is_read, "plan reads time limits, which are not in frontier_fields")


@promise
def messages_between_ranks_carry_a_draw(rule: Rule) -> None:
    """Send frontiers and sampled neighbors between ranks without changing them."""

    @examples(question=questions(rule))
    def check(question: Question) -> None:
        graph, drawn = question.plain.in_memory(), question.drawn(rule)
        edges = {t: csc.num_edges for t, csc in graph.edges.items()}
        wire = HopWire.of(question.frontier, question.hop(rule), question.key, graph.counts, edges)
        spans = {t: (0, count) for t, count in graph.counts.items()}
        received = wire.frontier(wire.request(question.frontier, spans), spans)
        for node_type, of_type in received.items():
            asked = question.frontier[node_type]
            expect_equal("nodes", of_type.nodes.tolist(), asked.nodes.tolist())
            found = {name: values.tolist() for name, values in of_type.fields.items()}
            expect_equal("fields", found, {name: values.tolist() for name, values in asked.fields.items()})
        message = torch.empty(wire.size_of(drawn), dtype=torch.uint8)
        try:
            wire.write(drawn, message)
        except RuntimeError as error:
            raise AssertionError(f"the draw does not fit into its message: {error}") from error
        rows = {t: of.nodes.numel() for t, of in question.frontier.items()}
        expect_same("after a message", wire.neighbors(message, rows), drawn)

    check()


@promise
def all_neighbors_have_their_exact_weights(rule: Rule) -> None:
    """Weight all neighbors (fanout -1) by `exact_weights`, or raise an error with the reason."""

    @examples(plain=plain_graphs_with_columns())
    def check(plain: PlainGraph) -> None:
        arrays = _arrays(plain)
        for edge_type, csc in arrays.edges.items():
            weights = _exact_weights(rule, edge_type, arrays)
            if weights is None:
                continue
            expect_equal("dtype of exact_weights", weights.dtype, torch.float64)
            expect_equal("shape of exact_weights", tuple(weights.shape), (csc.num_edges,))
            expect(bool(weights.isfinite().all()), f"exact_weights are {weights.tolist()}, must be finite")
            rows = {edge_type[2]: Frontier(torch.arange(csc.num_rows))}
            hop = Hop(1, {edge_type: -1}, rule, edge_ids=True)
            drawn = plain.in_memory().sample_hop(rows, hop, DrawKey(0))[edge_type]
            assert drawn.edges is not None
            given = drawn.weights
            if given is None:
                given = drawn.by_row(drawn.offsets.diff().double().reciprocal())
            found = torch.zeros_like(weights).index_add(0, drawn.edges, given.double())
            is_equal = torch.allclose(found, weights, rtol=1e-6, atol=0)
            expect(is_equal, f"weights of all edges are {found.tolist()}, exact_weights {weights.tolist()}")

    check()


@promise
def exact_inference_draws_nothing_at_random(rule: Rule) -> None:
    """Sample the same edges with any key for the fanouts of `exact_fanout`.

    These fanouts are -1 or the given ones. The order of the edges in a row can differ.
    """

    @examples(question=questions(rule))
    def check(question: Question) -> None:
        schema, exact = question.plain.in_memory().schema, dict[EdgeType, int]()
        for edge_type, fanout in question.fanouts.items():
            exact[edge_type] = rule.exact_fanout(schema, edge_type, fanout)
            is_known = exact[edge_type] in (-1, fanout)
            expect(is_known, f"exact_fanout of {fanout} is {exact[edge_type]}, must be it or -1")
        drawn, other = (
            replace(question, fanouts=exact, key=DrawKey(number)).drawn(rule) for number in (1, 2)
        )
        for edge_type, found in drawn.items():
            again = sorted_edges(other[edge_type])
            name = f"edges of {edge_type} of exact inference, with another key"
            expect_equal(name, again, sorted_edges(found))

    check()


@promise
def degrees_weigh_the_edges_of_a_row(rule: Rule) -> None:
    """Return a rule from `degrees` that weights a single sampled neighbor by the degree of its row."""
    counting = rule.degrees
    if counting is None:
        return

    @examples(question=questions(counting))
    def check(question: Question) -> None:
        one, every = (
            replace(question, fanouts=dict.fromkeys(question.fanouts, fanout)).drawn(counting)
            for fanout in (1, -1)
        )
        for edge_type, found in one.items():
            weights = [row[2] for row in rows_of(found)]
            expect(None not in weights, f"draws by degrees, {counting}, have no weights")
            counts = every[edge_type].offsets.diff().tolist()
            expect_equal("weights of one neighbor, by degrees", [sum(of or []) for of in weights], counts)

    check()


@promise
def shares_add_up_to_one(rule: Rule) -> None:
    """Return weights that add up to 1 in each row with neighbors, for fanouts with `has_shares`."""
    if not any(rule.has_shares(fanout) for fanout in (-1, 2)):
        return

    @examples(question=questions(rule))
    def check(question: Question) -> None:
        for edge_type, found in question.drawn(rule).items():
            if not rule.has_shares(question.fanouts[edge_type]):
                continue
            for _, edges, weights in rows_of(found):
                expect(weights is not None, f"edges {edges} have shares, but no weights")
                is_mean = not edges or abs(sum(weights or []) - 1) < 1e-5
                expect(is_mean, f"shares of edges {edges} are {weights}, must add up to 1")

    check()


PROMISES: tuple[Callable[[Rule], None], ...] = (
    it_is_a_value,
    drawn_edges_belong_to_their_rows,
    a_row_depends_on_no_other,
    threads_change_no_draw,
    partitions_change_no_draw,
    a_kernel_draws_as_the_reference,
    needs_name_all_arrays_that_are_read,
    a_graph_without_its_columns_is_refused,
    frontier_fields_are_those_that_it_reads,
    messages_between_ranks_carry_a_draw,
    all_neighbors_have_their_exact_weights,
    exact_inference_draws_nothing_at_random,
    degrees_weigh_the_edges_of_a_row,
    uniform_rules_draw_all_edges_alike,
    draws_average_to_exact_weights,
    shares_add_up_to_one,
)


def _exact_weights(rule: Rule, edge_type: EdgeType, arrays: RuleArrays) -> Tensor | None:
    """Return the exact weights; None if the rule has none or raises an error."""
    try:
        return rule.exact_weights(edge_type, arrays)
    except ValueError as error:
        reason = str(error)
    expect(str(rule) in reason, f"the error of exact_weights, {reason!r}, does not name the rule {rule}")
    return None


def _arrays(plain: PlainGraph) -> RuleArrays:
    graph = plain.in_memory()
    return RuleArrays(graph.edges, graph.columns, graph.originals)


def _requests(
    rule: Rule, question: Question, arrays: RuleArrays | WatchedArrays
) -> dict[EdgeType, DrawRequest]:
    hop = question.hop(rule)
    return {
        t: rule.plan(t, question.frontier[t[2]], hop, question.key, arrays)
        for t in question.fanouts
        if t[2] in question.frontier
    }
