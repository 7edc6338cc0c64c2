"""Promises of `khop.Rule` about the mean of many draws, for its contract suite."""

from __future__ import annotations

import torch
from torch import Tensor

from khop.draw import DrawKey, Frontier
from khop.graph.csc_graph import CscGraph
from khop.graph.rule_arrays import RuleArrays
from khop.rules.rule import FrontierField, Hop, Rule
from khop.rules.temporal import Temporal, TemporalStrategy
from khop.schema import EdgeType, NodeType
from khop.testing.graphs import BUYS, PlainGraph, int64
from khop.testing.promises import expect, promise

WEIGHTS, TIMES, ALLOWED = [2.0, 0.0, 0.5, 1.0, 4.0, 1.0], [0, 0, 1, 1, 1, 2], 1
ROWS, KEYS, FANOUT = 100, 20, 2


@promise
def uniform_rules_draw_all_edges_alike(rule: Rule) -> None:
    """State `is_uniform` only if every edge of a row is equally likely."""
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
    # The keys are fixed, so the numbers are too. 60 is five standard deviations of a fair draw.
    even = draws * fanout // edges
    is_even = bool(((counts - even).abs() <= 60).all())
    expect(is_even, f"edges of a row are drawn {counts.tolist()} times, must be near {even} each")


@promise
def draws_average_to_exact_weights(rule: Rule) -> None:
    """Give in the mean over 2,000 draws the weights of all neighbors, unless `exact_weights` raises an error.

    Within `Temporal` the inner rule's `exact_weights` decide.
    """
    graph = _equal_rows().in_memory()
    if not _estimates(rule, RuleArrays(graph.edges, graph.columns)):
        return
    exact = _weights(graph, rule, -1, DrawKey(0))[0]
    drawn = torch.cat([_weights(graph, rule, FANOUT, DrawKey(key)) for key in range(KEYS)])
    # The keys are fixed, so the numbers are too. Five standard errors, and what float32 rounds.
    most = 5 * drawn.std(0) / drawn.shape[0] ** 0.5 + 1e-5
    mean = drawn.mean(0)
    is_near = bool(((mean - exact).abs() <= most).all())
    expect(is_near, f"weights of edges are {mean.tolist()} in the mean of draws, must be {exact.tolist()}")


def _equal_rows() -> PlainGraph:
    """Return rows of six edges with the same weights and times, each with sources of its own.

    The last two edges that a time limit of `ALLOWED` leaves have one source.
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
    if isinstance(rule, Temporal):
        return rule.strategy is TemporalStrategy.SAMPLE and _estimates(rule.inner, arrays)
    try:
        rule.exact_weights(BUYS, arrays)
    except ValueError:
        return False
    return True
