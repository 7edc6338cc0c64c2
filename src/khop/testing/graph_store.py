"""Contract suite for graph stores: uniform sampling of a hop, and all other methods.

A test takes a function that makes the tested store from a small graph, which has edges as lists.
`khop.testing.graph_rules` tests sampling by weight and by time.

Example:
    >>> from khop.testing import graph_store
    >>> for promise in graph_store.PROMISES:
    ...     promise(lambda graph: graph.in_memory())
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import accumulate, pairwise

import torch
from hypothesis import strategies as st

from khop.draw import DrawKey, Frontier, Neighbors, stream
from khop.graph.rule import Hop
from khop.graph.store import GraphStore
from khop.sampling.rules.uniform import UNIFORM
from khop.schema import EdgeType
from khop.testing import graph_members
from khop.testing.graphs import BOUGHT_BY, BUYS, LIKE, SHOP, PlainGraph, int64, plain_graphs, shop_frontier
from khop.testing.promises import examples, expect, expect_equal, expect_refusal, promise
from khop.testing.reference import sample_hop

KEY = DrawKey(0x1234_5678_9ABC_DEF0)
Make = Callable[[PlainGraph], GraphStore]


def rows_of(drawn: Neighbors) -> list[list[int]]:
    """Return the neighbors of each row."""
    nodes = drawn.nodes.tolist()
    return [nodes[begin:end] for begin, end in pairwise(drawn.offsets.tolist())]


def same(one: Mapping[EdgeType, Neighbors], other: Mapping[EdgeType, Neighbors]) -> bool:
    """Return True if two results of a hop have the same types and rows."""
    return list(one) == list(other) and all(
        torch.equal(one[edge_type].offsets, other[edge_type].offsets)
        and torch.equal(one[edge_type].nodes, other[edge_type].nodes)
        for edge_type in one
    )


@promise
def draws_follow_the_specification(make: Make) -> None:
    """Sample the neighbors that docs/randomness.md specifies, with their positions in CSC order."""

    @examples(plain=plain_graphs(), data=st.data())
    def check(plain: PlainGraph, data: st.DataObject) -> None:
        def vectors(top: int, size: int | None = None) -> st.SearchStrategy[list[int]]:
            return st.lists(st.integers(0, top), min_size=size or 0, max_size=8 if size is None else size)

        nodes = {node_type: data.draw(vectors(count - 1)) for node_type, count in plain.counts.items()}
        trees = {node_type: data.draw(st.none() | vectors(99, len(ids))) for node_type, ids in nodes.items()}
        fanouts = {edge_type: data.draw(st.integers(-1, 6)) for edge_type in plain.edges}
        rule, key = (
            replace(UNIFORM, replacement=data.draw(st.booleans())),
            data.draw(st.integers(0, (1 << 64) - 1)),
        )
        frontier = {
            t: Frontier(int64(ids), tree=None if (tree := trees[t]) is None else int64(tree))
            for t, ids in nodes.items()
        }
        hop = Hop(data.draw(st.integers(1, 9)), fanouts, rule, edge_ids=True)
        drawn = make(plain).sample_hop(frontier, hop, DrawKey(key))
        expect_equal("edge types", list(drawn), list(fanouts))
        for edge_type, fanout in fanouts.items():
            to, word = edge_type[2], stream(hop.number, edge_type)
            expected = sample_hop(
                plain.indptr(edge_type),
                nodes[to],
                fanout,
                rule.replacement,
                key,
                word,
                plain.original_ids.get(to),
                trees[to],
            )
            check_rows(edge_type, plain, drawn[edge_type], expected)

    check()


def check_rows(edge_type: EdgeType, plain: PlainGraph, drawn: Neighbors, expected: list[list[int]]) -> None:
    """Compare sampled neighbors with the positions of the edges that each row must have."""
    edges, indices = [edge for row in expected for edge in row], plain.indices(edge_type)
    offsets = [0, *accumulate(map(len, expected))]
    expect_equal(f"offsets of {edge_type}", drawn.offsets.tolist(), offsets)
    expect(drawn.edges is not None, f"edges of {edge_type} are None, although hop.edge_ids is True")
    assert drawn.edges is not None
    expect_equal(f"edges of {edge_type}", drawn.edges.tolist(), edges)
    expect_equal(f"nodes of {edge_type}", drawn.nodes.tolist(), [indices[edge] for edge in edges])


@promise
def entries_follow_the_order_of_the_fanouts(make: Make) -> None:
    """Return one entry per edge type of the hop, in the order of `hop.fanouts`."""
    graph = make(SHOP)
    for order in ([BUYS, BOUGHT_BY, LIKE], [LIKE, BUYS, BOUGHT_BY]):
        drawn = graph.sample_hop(shop_frontier(0, 1), Hop(1, dict.fromkeys(order, 2), UNIFORM), KEY)
        expect_equal("edge types", list(drawn), order)


@promise
def types_without_frontier_have_no_entry(make: Make) -> None:
    """Return no entry for edge types without a fanout, or without a frontier of their destination type."""
    graph = make(SHOP)
    frontier = {"item": Frontier(int64([1, 2]))}
    for fanouts, expected in (({BUYS: 2, BOUGHT_BY: 2}, [BUYS]), ({LIKE: 2}, [LIKE])):
        expect_equal("edge types", list(graph.sample_hop(frontier, Hop(1, fanouts, UNIFORM), KEY)), expected)


@promise
def an_empty_frontier_has_an_entry(make: Make) -> None:
    """Return an entry without rows for an empty frontier."""
    hop = Hop(1, {LIKE: 2, BUYS: -1}, UNIFORM, edge_ids=True)
    drawn = make(SHOP).sample_hop({"item": Frontier(int64([]))}, hop, KEY)
    expect_equal("edge types", list(drawn), [LIKE, BUYS])
    for edge_type, of_type in drawn.items():
        expect_equal(f"offsets of {edge_type}", of_type.offsets.tolist(), [0])
        expect_equal(f"nodes of {edge_type}", of_type.nodes.tolist(), [])


@promise
def a_node_without_edges_has_an_empty_row(make: Make) -> None:
    """Return an empty row for a node without in-edges."""
    hop = Hop(1, {BUYS: -1}, UNIFORM)
    drawn = make(SHOP).sample_hop({"item": Frontier(int64([8, 0, 8]))}, hop, KEY)[BUYS]
    expect_equal("rows of items 8, 0 and 8", rows_of(drawn), [[], [0, 1, 2, 3, 4, 5], []])


@promise
def rows_keep_the_order_of_the_frontier(make: Make) -> None:
    """Keep rows in the order of the frontier; a row does not depend on others."""
    graph, hop = make(SHOP), Hop(2, {LIKE: 3}, UNIFORM)
    one, other = (
        rows_of(graph.sample_hop({"item": Frontier(int64(items))}, hop, KEY)[LIKE])
        for items in ([0, 3, 5, 3], [5, 3, 0])
    )
    expect_equal("rows of items 0, 3, 5 and 3", one, [other[2], other[1], other[0], other[1]])
    expect_equal("lengths of rows with fanout 3", [len(row) for row in one], [3, 3, 3, 3])


@promise
def draws_depend_on_key_hop_and_edge_type(make: Make) -> None:
    """Sample independently for different keys, hops and edge types, and reproducibly for equal ones."""
    a, b = ("item", "a", "item"), ("item", "b", "item")
    edges = {edge_type: [(n, 0) for n in range(200)] for edge_type in (a, b)}
    graph, frontier = make(PlainGraph({"item": 200}, edges)), {"item": Frontier(int64([0]))}

    def drawn(key: DrawKey, number: int, edge_type: EdgeType) -> list[int]:
        hop = Hop(number, {edge_type: 10}, UNIFORM)
        return graph.sample_hop(frontier, hop, key)[edge_type].nodes.tolist()

    first = drawn(KEY, 1, a)
    expect_equal("the second draw with the same key", drawn(KEY, 1, a), first)
    others = {
        "another key": drawn(KEY.plus(1), 1, a),
        "another hop": drawn(KEY, 2, a),
        "another edge type": drawn(KEY, 1, b),
    }
    for what, of_other in others.items():
        expect(of_other != first, f"{what} draws the same neighbors, {first}")


@promise
def threads_share_it(make: Make) -> None:
    """Sample the same neighbors when several threads call `sample_hop` concurrently."""
    graph, hop = make(SHOP), Hop(1, {BUYS: 3, LIKE: 4, BOUGHT_BY: -1}, UNIFORM)
    items = [[start, (start * 5) % 9, 7] for start in range(9)] * 8
    alone = [graph.sample_hop(shop_frontier(*some), hop, KEY) for some in items]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda some: graph.sample_hop(shop_frontier(*some), hop, KEY), items))
    expect(all(map(same, alone, together)), "four threads draw other neighbors than one")


@promise
def numbers_of_threads_change_no_draw(make: Make) -> None:
    """Sample the same neighbors for any `hop.threads`."""
    graph = make(SHOP)
    places = torch.arange(900)  # in khop's kernels a thread has 256 rows or more
    frontier = {"item": Frontier(places % 9), "user": Frontier(places % 6)}
    one, three = (
        graph.sample_hop(frontier, Hop(1, {BUYS: 3, LIKE: 4, BOUGHT_BY: -1}, UNIFORM, threads=count), KEY)
        for count in (1, 3)
    )
    expect(same(one, three), "a hop with three threads draws other neighbors than with one")


@promise
def edge_ids_come_on_request(make: Make) -> None:
    """Return edge ids (int64 positions in CSC order) only if `hop.edge_ids` is True."""
    graph, frontier = make(SHOP), shop_frontier(3, 6)
    without = graph.sample_hop(frontier, Hop(1, {LIKE: 4}, UNIFORM), KEY)[LIKE]
    expect(without.edges is None, "edges are returned, although hop.edge_ids is False")
    drawn = graph.sample_hop(frontier, Hop(1, {LIKE: 4}, UNIFORM, edge_ids=True), KEY)[LIKE]
    expect(drawn.edges is not None, "edges are None, although hop.edge_ids is True")
    assert drawn.edges is not None
    expect_equal("dtype of edges", drawn.edges.dtype, torch.int64)
    indices = SHOP.indices(LIKE)
    expect_equal("sources of the edges", [indices[e] for e in drawn.edges.tolist()], drawn.nodes.tolist())


@promise
def the_frontier_does_not_change(make: Make) -> None:
    """Leave the tensors of the frontier unchanged."""
    nodes = int64([4, 4, 1])
    make(SHOP).sample_hop({"item": Frontier(nodes)}, Hop(1, {LIKE: 2, BUYS: 2}, UNIFORM), KEY)
    expect_equal("nodes of the frontier after the hop", nodes.tolist(), [4, 4, 1])


@promise
def a_missing_node_is_named(make: Make) -> None:
    """Raise ValueError that names a frontier node out of range, its edge type and the number of nodes."""
    graph, hop = make(SHOP), Hop(1, {LIKE: 2}, UNIFORM)
    for node in (9, -1, 1 << 40):
        frontier = {"item": Frontier(int64([0, node]))}
        expect_refusal(
            lambda frontier=frontier: graph.sample_hop(frontier, hop, KEY),  # type: ignore[misc]
            f"node {node} of 9",
            "like",
            str(node),
            "9",
        )


@promise
def a_missing_type_is_named(make: Make) -> None:
    """Raise ValueError that names an unknown type and the existing types."""
    graph = make(SHOP)
    unknown = ("user", "sells", "item")
    hop = Hop(1, {unknown: 2}, UNIFORM)
    expect_refusal(
        lambda: graph.sample_hop(shop_frontier(0), hop, KEY), f"edge type {unknown}", "sells", "buys"
    )
    expect_refusal(lambda: graph.num_nodes("shop"), "node type 'shop'", "'shop'", "'item'")


@promise
def a_wrong_fanout_is_named(make: Make) -> None:
    """Raise ValueError that names a fanout below -1 and its edge type."""
    graph, hop = make(SHOP), Hop(1, {LIKE: -2}, UNIFORM)
    expect_refusal(lambda: graph.sample_hop(shop_frontier(0), hop, KEY), "fanout -2", "like", "-2")


@promise
def time_limits_need_a_rule_that_reads_them(make: Make) -> None:
    """Raise ValueError if the frontier has time limits and the rule does not read them."""
    graph, hop = make(SHOP), Hop(1, {LIKE: 2}, UNIFORM)
    frontier = {"item": Frontier(int64([0]), until=int64([5]))}
    expect_refusal(lambda: graph.sample_hop(frontier, hop, KEY), "time limits", "like", "time", "Uniform")


PROMISES: tuple[Callable[[Make], None], ...] = (
    draws_follow_the_specification,
    entries_follow_the_order_of_the_fanouts,
    types_without_frontier_have_no_entry,
    an_empty_frontier_has_an_entry,
    a_node_without_edges_has_an_empty_row,
    rows_keep_the_order_of_the_frontier,
    draws_depend_on_key_hop_and_edge_type,
    threads_share_it,
    numbers_of_threads_change_no_draw,
    edge_ids_come_on_request,
    the_frontier_does_not_change,
    a_missing_node_is_named,
    a_missing_type_is_named,
    a_wrong_fanout_is_named,
    time_limits_need_a_rule_that_reads_them,
    *graph_members.PROMISES,
)
