"""What every graph store promises. The tests of each one run PROMISES with a way to make its graphs:

@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_it_keeps(promise): promise(make)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import accumulate

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from khop.draw import DrawKey, Frontier, Neighbors, stream
from khop.graph.store import GraphStore
from khop.rules.rule import Hop
from khop.rules.uniform import Uniform
from khop.schema import EdgeType, NodeType
from reference.sampling import sample_hop

BUYS = ("user", "buys", "item")
BOUGHT_BY = ("item", "bought-by", "user")
LIKE = ("item", "like", "item")
KEY = DrawKey(0x1234_5678_9ABC_DEF0)


@dataclass(frozen=True)
class Plain:
    """A graph as a person would write it."""

    counts: Mapping[NodeType, int]
    edges: Mapping[EdgeType, list[tuple[int, int]]]  # (source, destination), in the order of the rows
    original_ids: Mapping[NodeType, list[int]] = field(default_factory=dict)
    columns: Mapping[NodeType | EdgeType, Mapping[str, list[float]]] = field(default_factory=dict)

    @property
    def sort_by(self) -> str | None:
        """Rows follow the column "time" where there is one."""
        return "time" if any("time" in of_type for of_type in self.columns.values()) else None

    def tensors(self, type_: NodeType | EdgeType) -> dict[str, Tensor]:
        return {
            name: torch.tensor(column, dtype=torch.int64 if name == "time" else torch.float32)
            for name, column in self.columns.get(type_, {}).items()
        }

    def indptr(self, edge_type: EdgeType) -> list[int]:
        degrees = [0] * self.counts[edge_type[2]]
        for _, destination in self.edges[edge_type]:
            degrees[destination] += 1
        return [0, *accumulate(degrees)]

    def indices(self, edge_type: EdgeType) -> list[int]:
        return [source for source, _ in sorted(self.edges[edge_type], key=lambda pair: pair[1])]


Make = Callable[[Plain], GraphStore]

SHOP = Plain(
    counts={"user": 6, "item": 9},
    edges={
        BUYS: [(user, item) for item in range(8) for user in range(6) if (user * item) % 4 != 3],
        BOUGHT_BY: [(item, user) for item in range(8) for user in range(6) if (user * item) % 4 != 3],
        LIKE: [(a, b) for a in range(9) for b in range(7) for _ in range(1 + (a + b) % 3)],
    },
)  # item 8 is isolated, LIKE has self loops and multi-edges


@st.composite
def plain_graphs(draw: st.DrawFn) -> Plain:
    counts = {"user": draw(st.integers(1, 5)), "item": draw(st.integers(1, 5))}
    edges = {}
    for edge_type in draw(st.permutations([BUYS, BOUGHT_BY, LIKE])):
        ends = (st.integers(0, counts[node_type] - 1) for node_type in (edge_type[0], edge_type[2]))
        edges[edge_type] = draw(st.lists(st.tuples(*ends), max_size=40))
    original_ids = {
        node_type: draw(st.lists(st.integers(0, 1 << 62), min_size=count, max_size=count, unique=True))
        for node_type, count in counts.items()
        if draw(st.booleans())
    }
    return Plain(counts, edges, original_ids)


def int64(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def shop_frontier(*items: int, user: int = 2) -> dict[NodeType, Frontier]:
    return {"item": Frontier(int64(list(items))), "user": Frontier(int64([user]))}


def rows_of(drawn: Neighbors) -> list[list[int]]:
    return [row.tolist() for row in drawn.nodes.tensor_split(drawn.offsets[1:-1])]


def same(one: Mapping[EdgeType, Neighbors], other: Mapping[EdgeType, Neighbors]) -> bool:
    return list(one) == list(other) and all(
        torch.equal(one[edge_type].offsets, other[edge_type].offsets)
        and torch.equal(one[edge_type].nodes, other[edge_type].nodes)
        for edge_type in one
    )


def draws_are_those_of_the_specification(make: Make) -> None:
    @given(plain=plain_graphs(), data=st.data())
    def check(plain: Plain, data: st.DataObject) -> None:
        def vectors(top: int, size: int | None = None) -> st.SearchStrategy[list[int]]:
            return st.lists(st.integers(0, top), min_size=size or 0, max_size=8 if size is None else size)

        nodes = {node_type: data.draw(vectors(count - 1)) for node_type, count in plain.counts.items()}
        trees = {node_type: data.draw(st.none() | vectors(99, len(ids))) for node_type, ids in nodes.items()}
        fanouts = {edge_type: data.draw(st.integers(-1, 6)) for edge_type in plain.edges}
        rule, key = Uniform(data.draw(st.booleans())), data.draw(st.integers(0, (1 << 64) - 1))
        frontier = {
            node_type: Frontier(
                int64(ids), tree=None if trees[node_type] is None else int64(trees[node_type])
            )
            for node_type, ids in nodes.items()
        }
        hop = Hop(data.draw(st.integers(1, 9)), fanouts, rule, edge_ids=True)
        drawn = make(plain).sample_hop(frontier, hop, DrawKey(key))
        for edge_type, fanout in fanouts.items():
            to = edge_type[2]
            expected = sample_hop(
                plain.indptr(edge_type),
                nodes[to],
                fanout,
                rule.replacement,
                key,
                stream(hop.number, edge_type),
                plain.original_ids.get(to),
                trees[to],
            )
            edges = [edge for row in expected for edge in row]
            assert drawn[edge_type].offsets.tolist() == [0, *accumulate(map(len, expected))]
            assert drawn[edge_type].edges.tolist() == edges
            assert drawn[edge_type].nodes.tolist() == [plain.indices(edge_type)[edge] for edge in edges]

    check()


def it_says_what_it_holds(make: Make) -> None:
    graph = make(SHOP)
    assert set(graph.schema.edge_types) == set(SHOP.edges)
    assert {name: graph.num_nodes(name) for name in graph.schema.node_types} == dict(SHOP.counts)


def there_is_one_entry_per_edge_type_in_the_order_of_the_fanouts(make: Make) -> None:
    graph = make(SHOP)
    for order in ([BUYS, BOUGHT_BY, LIKE], [LIKE, BUYS, BOUGHT_BY]):
        drawn = graph.sample_hop(shop_frontier(0, 1), Hop(1, dict.fromkeys(order, 2), Uniform()), KEY)
        assert list(drawn) == order


def types_that_are_not_asked_for_are_left_out(make: Make) -> None:
    graph = make(SHOP)
    frontier = {"item": Frontier(int64([1, 2]))}
    assert list(graph.sample_hop(frontier, Hop(1, {BUYS: 2, BOUGHT_BY: 2}, Uniform()), KEY)) == [BUYS]
    assert list(graph.sample_hop(frontier, Hop(1, {LIKE: 2}, Uniform()), KEY)) == [LIKE]


def an_empty_frontier_has_an_entry_too(make: Make) -> None:
    hop = Hop(1, {LIKE: 2, BUYS: -1}, Uniform(), edge_ids=True)
    for drawn in make(SHOP).sample_hop({"item": Frontier(int64([]))}, hop, KEY).values():
        assert drawn.offsets.tolist() == [0]
        assert drawn.nodes.numel() == drawn.edges.numel() == 0


def a_node_without_edges_has_an_empty_row(make: Make) -> None:
    drawn = make(SHOP).sample_hop({"item": Frontier(int64([8, 0, 8]))}, Hop(1, {BUYS: -1}, Uniform()), KEY)[
        BUYS
    ]
    assert rows_of(drawn) == [[], [0, 1, 2, 3, 4, 5], []]


def rows_keep_the_order_of_the_frontier(make: Make) -> None:
    graph, hop = make(SHOP), Hop(2, {LIKE: 3}, Uniform())
    one, other = (
        rows_of(graph.sample_hop({"item": Frontier(int64(items))}, hop, KEY)[LIKE])
        for items in ([0, 3, 5, 3], [5, 3, 0])
    )
    assert one == [other[2], other[1], other[0], other[1]]
    assert [len(row) for row in one] == [3, 3, 3, 3]


def draws_depend_on_key_hop_and_edge_type(make: Make) -> None:
    graph = make(
        Plain({"item": 200}, {(*LIKE[:1], name, "item"): [(n, 0) for n in range(200)] for name in "ab"})
    )
    a, b = ("item", "a", "item"), ("item", "b", "item")
    frontier = {"item": Frontier(int64([0]))}

    def drawn(key: DrawKey, number: int, edge_type: EdgeType) -> list[int]:
        return graph.sample_hop(frontier, Hop(number, {edge_type: 10}, Uniform()), key)[
            edge_type
        ].nodes.tolist()

    first = drawn(KEY, 1, a)
    assert drawn(KEY, 1, a) == first
    assert first not in (drawn(KEY.plus(1), 1, a), drawn(KEY, 2, a), drawn(KEY, 1, b))


def threads_may_share_it(make: Make) -> None:
    graph, hop = make(SHOP), Hop(1, {BUYS: 3, LIKE: 4, BOUGHT_BY: -1}, Uniform())
    items = [[start, (start * 5) % 9, 7] for start in range(9)] * 8
    alone = [graph.sample_hop(shop_frontier(*some), hop, KEY) for some in items]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda some: graph.sample_hop(shop_frontier(*some), hop, KEY), items))
    assert all(map(same, alone, together))


def edge_ids_come_on_request_only(make: Make) -> None:
    graph = make(SHOP)
    frontier = shop_frontier(3, 6)
    assert graph.sample_hop(frontier, Hop(1, {LIKE: 4}, Uniform()), KEY)[LIKE].edges is None
    drawn = graph.sample_hop(frontier, Hop(1, {LIKE: 4}, Uniform(), edge_ids=True), KEY)[LIKE]
    assert drawn.edges.dtype == torch.int64
    assert [SHOP.indices(LIKE)[edge] for edge in drawn.edges] == drawn.nodes.tolist()


def what_it_is_given_stays_as_it_was(make: Make) -> None:
    nodes = int64([4, 4, 1])
    make(SHOP).sample_hop({"item": Frontier(nodes)}, Hop(1, {LIKE: 2, BUYS: 2}, Uniform()), KEY)
    assert nodes.tolist() == [4, 4, 1]


def a_node_out_of_range_is_named(make: Make) -> None:
    graph = make(SHOP)
    for node in (9, -1, 1 << 40):
        with pytest.raises(ValueError, match=f"like.*{node}.*9"):
            graph.sample_hop({"item": Frontier(int64([0, node]))}, Hop(1, {LIKE: 2}, Uniform()), KEY)


def a_type_that_is_not_there_is_named(make: Make) -> None:
    graph = make(SHOP)
    with pytest.raises(ValueError, match=r"no edge type \('user', 'sells', 'item'\); there are .*'buys'"):
        graph.sample_hop(shop_frontier(0), Hop(1, {("user", "sells", "item"): 2}, Uniform()), KEY)
    with pytest.raises(ValueError, match=r"no node type 'shop'; there are .*'item'"):
        graph.num_nodes("shop")


def a_fanout_below_minus_one_is_named(make: Make) -> None:
    with pytest.raises(ValueError, match=r"like.*fanout -2"):
        make(SHOP).sample_hop(shop_frontier(0), Hop(1, {LIKE: -2}, Uniform()), KEY)


def time_limits_need_a_rule_that_knows_them(make: Make) -> None:
    frontier = {"item": Frontier(int64([0]), until=int64([5]))}
    with pytest.raises(ValueError, match=r"like.*time limits.*Uniform"):
        make(SHOP).sample_hop(frontier, Hop(1, {LIKE: 2}, Uniform()), KEY)


PROMISES: tuple[Callable[[Make], None], ...] = (
    draws_are_those_of_the_specification,
    it_says_what_it_holds,
    there_is_one_entry_per_edge_type_in_the_order_of_the_fanouts,
    types_that_are_not_asked_for_are_left_out,
    an_empty_frontier_has_an_entry_too,
    a_node_without_edges_has_an_empty_row,
    rows_keep_the_order_of_the_frontier,
    draws_depend_on_key_hop_and_edge_type,
    threads_may_share_it,
    edge_ids_come_on_request_only,
    what_it_is_given_stays_as_it_was,
    a_node_out_of_range_is_named,
    a_type_that_is_not_there_is_named,
    a_fanout_below_minus_one_is_named,
    time_limits_need_a_rule_that_knows_them,
)
