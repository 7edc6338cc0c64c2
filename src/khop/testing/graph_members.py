"""Contract suite for all methods of graph stores except `sample_hop`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from math import isqrt

import torch
from hypothesis import strategies as st

from khop.draw import DegreeNegatives, DrawKey, DrawnNegatives, Frontier, Positives, UniformNegatives, stream
from khop.graph.needs import NegativeNeed
from khop.graph.rule import Hop
from khop.graph.store import GraphStore, edge_values
from khop.kernels.csc import Csc
from khop.sampling.rules.uniform import UNIFORM
from khop.schema import EdgeType
from khop.testing.graphs import BOUGHT_BY, BUYS, LIKE, SHOP, PlainGraph, int64, plain_graphs, shop_frontier
from khop.testing.promises import examples, expect, expect_equal, expect_refusal, promise, unless_unsupported
from khop.testing.reference import negatives as specified_negatives

KEY = DrawKey(0x0FED_CBA9_8765_4321)
Make = Callable[[PlainGraph], GraphStore]


def all_rows(graph: GraphStore, edge_type: EdgeType) -> list[list[int]]:
    """Return the sources of every row of an edge type, by a hop over all neighbors."""
    nodes = torch.arange(graph.num_nodes(edge_type[2]))
    drawn = graph.sample_hop({edge_type[2]: Frontier(nodes)}, Hop(1, {edge_type: -1}, UNIFORM), KEY)
    offsets, sources = drawn[edge_type].offsets.tolist(), drawn[edge_type].nodes.tolist()
    return [sources[begin:end] for begin, end in pairwise(offsets)]


def plain_rows(plain: PlainGraph, edge_type: EdgeType) -> list[list[int]]:
    """Return the sources of every row of an edge type."""
    indices = plain.indices(edge_type)
    return [indices[begin:end] for begin, end in pairwise(plain.indptr(edge_type))]


@promise
def it_states_types_and_counts(make: Make) -> None:
    """Return the types of the graph, and the number of nodes and edges of each type."""
    graph = make(SHOP)
    expect_equal("edge types", set(graph.schema.edge_types), set(SHOP.edges))
    expect_equal("node types", set(graph.schema.node_types), set(SHOP.counts))
    expect_equal("num_nodes", {t: graph.num_nodes(t) for t in SHOP.counts}, dict(SHOP.counts))
    for edge_type, pairs in SHOP.edges.items():
        count = unless_unsupported(lambda t=edge_type: graph.num_edges(t))  # type: ignore[misc]
        expect(count in (None, len(pairs)), f"num_edges of {edge_type}: {count}, must be {len(pairs)}")
    expect_equal("type of is_collective", type(graph.is_collective), bool)
    expect_equal("servers of a store that draws in this process", graph.servers, None)


@promise
def hops_are_drawn_alike_by_their_object(make: Make) -> None:
    """Sample the same neighbors with the function that `for_hops` returns as with `sample_hop`."""
    graph, frontier = make(SHOP), shop_frontier(0, 3, 8)
    hop = Hop(2, {BUYS: 2, BOUGHT_BY: -1, LIKE: 3}, UNIFORM, edge_ids=True)
    expected = graph.sample_hop(frontier, hop, KEY)
    found = graph.for_hops([hop])(frontier, hop, KEY)
    for edge_type, of_type in expected.items():
        expect(of_type.edges is not None, f"no edges of {edge_type}, although Hop.edge_ids is True")
        for name in ("offsets", "nodes", "edges"):
            one, other = getattr(found[edge_type], name), getattr(of_type, name)
            expect_equal(f"{name} of {edge_type}", one.tolist(), other.tolist())


@promise
def original_ids_are_those_before_renumbering(make: Make) -> None:
    """Return the ids before renumbering, int64 (nodes), or None if nodes were not renumbered."""

    @examples(plain=plain_graphs())
    def check(plain: PlainGraph) -> None:
        graph = make(plain)
        for node_type, count in plain.counts.items():
            ids, expected = graph.original_ids(node_type), plain.original_ids.get(node_type)
            if ids is None:
                expect(expected is None, f"original_ids of {node_type!r} is None, must be {expected}")
                continue
            expect_equal(f"dtype of original_ids of {node_type!r}", ids.dtype, torch.int64)
            expect_equal(f"original_ids of {node_type!r}", ids.tolist(), expected or list(range(count)))

    check()


@promise
def partition_bounds_cover_all_nodes(make: Make) -> None:
    """Return ascending partition bounds from 0 to the number of nodes."""
    graph = make(SHOP)
    for node_type, count in SHOP.counts.items():
        bounds = graph.partition_bounds(node_type)
        is_right = bounds[0] == 0 and bounds[-1] == count and list(bounds) == sorted(bounds)
        what = f"partition_bounds of {node_type!r}: {bounds}"
        expect(len(bounds) >= 2 and is_right, f"{what}, must ascend from 0 to {count}")


@promise
def results_are_on_the_frontiers_device(make: Make) -> None:
    """Return neighbors on `frontier_device`."""
    graph = make(SHOP)
    device = graph.frontier_device
    frontier = {"item": Frontier(int64([1]).to(device))}
    drawn = graph.sample_hop(frontier, Hop(1, {LIKE: 2}, UNIFORM), KEY)[LIKE]
    expect_equal("devices of offsets and nodes", {drawn.offsets.device, drawn.nodes.device}, {device})


@promise
def device_stores_have_the_nodes_and_edges(make: Make) -> None:
    """Return None from `device_stores`, or a graph with the same edge types and numbers of nodes."""
    graph = make(SHOP)
    if graph.device_stores is not None:
        edges, _ = graph.device_stores
        expect_equal("edge types of device_stores", {*edges.schema.edge_types}, {*SHOP.edges})
        counts = {node_type: edges.num_nodes(node_type) for node_type in SHOP.counts}
        expect_equal("numbers of nodes of device_stores", counts, SHOP.counts)


@promise
def preparing_changes_no_draw(make: Make) -> None:
    """Accept any needs in `prepare`, also when called twice, and then sample the same neighbors."""
    graph, hop = make(SHOP), Hop(1, {LIKE: 3, BUYS: 2}, UNIFORM)
    before = [of_type.nodes.tolist() for of_type in graph.sample_hop(shop_frontier(1, 4), hop, KEY).values()]
    for _ in range(2):
        graph.prepare(())
        unless_unsupported(lambda: graph.prepare([NegativeNeed(BUYS, UniformNegatives(2, exact=True))]))
    after = [of_type.nodes.tolist() for of_type in graph.sample_hop(shop_frontier(1, 4), hop, KEY).values()]
    expect_equal("neighbors after prepare", after, before)


@promise
def in_degrees_are_the_lengths_of_rows(make: Make) -> None:
    """Return the number of in-edges of each node, int64, from `in_degrees`, or raise Unsupported."""
    graph, nodes = make(SHOP), int64([8, 0, 3, 0])
    for edge_type in SHOP.edges:
        some = nodes[nodes < SHOP.counts[edge_type[2]]]
        found = unless_unsupported(lambda t=edge_type, of=some: graph.in_degrees(t, of))  # type: ignore[misc]
        if found is not None:
            rows = all_rows(graph, edge_type)
            expect_equal(f"dtype of in_degrees of {edge_type}", found.dtype, torch.int64)
            expected = [len(rows[node]) for node in some.tolist()]
            expect_equal(f"in_degrees of {edge_type}, nodes {some.tolist()}", found.tolist(), expected)


@promise
def edge_values_are_those_of_the_column(make: Make) -> None:
    """Return the values of edges at any positions in CSC order, or raise Unsupported."""
    times = list(
        range(-5, len(SHOP.edges[LIKE]) - 5)
    )  # ascending, so that rows sorted by time keep their order
    graph = make(replace(SHOP, columns={LIKE: {"time": list(map(float, times))}}))
    pairs = list(zip(SHOP.edges[LIKE], times, strict=True))
    in_order = [time for _, time in sorted(pairs, key=lambda each: each[0][1])]
    for edges in ([len(times) - 1, 0, 7, 7, 30], []):
        found = unless_unsupported(lambda of=edges: edge_values(graph, LIKE, "time", int64(of)))  # type: ignore[misc]
        if found is None:
            return
        what = f"edge_values of {LIKE}, edges {edges}"
        expect_equal(f"dtype of {what}", found.dtype, torch.int64)
        expect_equal(what, found.tolist(), [in_order[edge] for edge in edges])
    expect_refusal(lambda: edge_values(graph, LIKE, "cost", int64([0])), "column 'cost'", "cost", "like")


@promise
def whole_edges_are_those_of_the_graph(make: Make) -> None:
    """Return all edges from `local_csc` and `in_one_piece`, or raise Unsupported."""
    graph = make(SHOP)
    joined = unless_unsupported(lambda: graph.in_one_piece("the contract suite"))
    for edge_type in SHOP.edges:
        csc = unless_unsupported(lambda t=edge_type: graph.local_csc(t))  # type: ignore[misc]
        if csc is not None and graph.original_ids(edge_type[2]) is None:
            _expect_csc(f"local_csc of {edge_type}", csc, edge_type)
        if joined is not None and joined.original_ids(edge_type[2]) is None:
            _expect_csc(f"in_one_piece, edges of {edge_type}", joined.csc(edge_type), edge_type)


def _expect_csc(what: str, csc: Csc, edge_type: EdgeType) -> None:
    expect_equal(f"{what}: indptr", csc.indptr.tolist(), SHOP.indptr(edge_type))
    expect_equal(f"{what}: indices", csc.indices.tolist(), SHOP.indices(edge_type))


@promise
def some_edge_types_are_those_of_the_graph(make: Make) -> None:
    """Return a graph with some edge types and their node types from `only`, or raise Unsupported."""
    graph = make(SHOP)
    some = unless_unsupported(lambda: graph.only([LIKE]))
    if some is None:
        return
    expect_equal("edge types of only([LIKE])", some.schema.edge_types, (LIKE,))
    expect_equal("node types of only([LIKE])", some.schema.node_types, ("item",))
    expect_equal("rows of only([LIKE])", all_rows(some, LIKE), all_rows(graph, LIKE))
    unknown = ("user", "sells", "item")
    expect_refusal(lambda: graph.only([unknown]), f"only([{unknown}])", "sells")


@promise
def kept_edges_are_those_that_were_named(make: Make) -> None:
    """Return a graph with some edges of a type from `keeping`, or raise Unsupported."""
    graph = make(SHOP)
    if len(graph.partition_bounds("item")) > 2:
        return  # positions are relative to partitions, which the suite does not know
    kept = torch.arange(0, len(SHOP.edges[LIKE]), 3)
    some = unless_unsupported(lambda: graph.keeping({LIKE: (kept,)}))
    if some is None:
        return
    pairs = SHOP.pairs(LIKE)
    named = [pairs[edge] for edge in kept.tolist()]
    rows = [[source for source, into in named if into == item] for item in range(SHOP.counts["item"])]
    expect_equal(f"rows of {LIKE} after keeping every third edge", all_rows(some, LIKE), rows)
    expect_equal(f"rows of {BUYS} after it", all_rows(some, BUYS), plain_rows(SHOP, BUYS))
    expect_equal(f"rows of {LIKE} in the graph itself", all_rows(graph, LIKE), plain_rows(SHOP, LIKE))


NEGATIVES = st.builds(UniformNegatives, st.integers(1, 4), exact=st.booleans()) | st.builds(
    DegreeNegatives, st.integers(1, 4), exact=st.booleans(), power=st.sampled_from([0.25, 0.5, 0.75, 1.0])
)


@promise
def negatives_follow_the_specification(make: Make) -> None:
    """Sample the negatives that docs/randomness.md specifies, or raise Unsupported."""

    @examples(plain=plain_graphs(), negatives=NEGATIVES, data=st.data())
    def check(plain: PlainGraph, negatives: DrawnNegatives, data: st.DataObject) -> None:
        edge_type = data.draw(st.sampled_from([BUYS, BOUGHT_BY, LIKE]))
        sources = data.draw(st.lists(st.integers(0, plain.counts[edge_type[0]] - 1), max_size=5))
        positions = [data.draw(st.integers(0, 1 << 40)) for _ in sources]
        expected = [
            _specified(plain, edge_type, negatives, source, at)
            for source, at in zip(sources, positions, strict=True)
        ]
        if not all(expected):
            return  # a source without a candidate is an error
        asked = Positives(int64(sources), int64(positions))
        graph = make(plain)
        drawn = unless_unsupported(lambda: graph.sample_negatives(edge_type, negatives, asked, KEY))
        if drawn is not None:
            expect_equal("dtype of negatives", drawn.dtype, torch.int64)
            expect_equal("shape", tuple(drawn.shape), (len(sources), negatives.per_positive))
            expect_equal(f"{negatives} of {edge_type}, sources {sources}", drawn.tolist(), expected)

    check()


def _specified(
    plain: PlainGraph, edge_type: EdgeType, negatives: DrawnNegatives, source: int, position: int
) -> list[int]:
    """Return the negatives of one link in plain integers; empty if no candidate is left."""
    source_type, _, to = edge_type
    ids = plain.original_ids.get(to) or list(range(plain.counts[to]))
    by_rank = sorted(range(len(ids)), key=lambda node: ids[node])
    partners = {into for of, into in plain.edges[edge_type] if of == source}
    excluded = partners | ({source} if source_type == to else set()) if negatives.exact else set()
    degrees = [len(row) for row in plain_rows(plain, edge_type)]
    weights = [_weight(negatives, degrees[node]) for node in range(len(ids))]
    left = [0 if node in excluded else weights[node] for node in by_rank]
    ranks = specified_negatives(KEY.value, position, stream(0, edge_type), left, negatives.per_positive)
    return [by_rank[rank] for rank in ranks]


def _weight(negatives: DrawnNegatives, degree: int) -> int:
    """Return floor(2^8 * degree^power), in integers."""
    if not isinstance(negatives, DegreeNegatives):
        return 1
    return isqrt(isqrt(degree ** round(negatives.power * 4) << 32))


@promise
def a_missing_edge_type_of_negatives_is_named(make: Make) -> None:
    """Raise ValueError for negatives of an edge type that the graph does not have."""
    graph, asked = make(SHOP), Positives(int64([0]), int64([0]))
    unknown = ("user", "sells", "item")
    expect_refusal(
        lambda: graph.sample_negatives(unknown, UniformNegatives(), asked, KEY), f"edge type {unknown}"
    )


PROMISES: tuple[Callable[[Make], None], ...] = (
    it_states_types_and_counts,
    hops_are_drawn_alike_by_their_object,
    original_ids_are_those_before_renumbering,
    partition_bounds_cover_all_nodes,
    results_are_on_the_frontiers_device,
    device_stores_have_the_nodes_and_edges,
    preparing_changes_no_draw,
    in_degrees_are_the_lengths_of_rows,
    edge_values_are_those_of_the_column,
    whole_edges_are_those_of_the_graph,
    some_edge_types_are_those_of_the_graph,
    kept_edges_are_those_that_were_named,
    negatives_follow_the_specification,
    a_missing_edge_type_of_negatives_is_named,
)
