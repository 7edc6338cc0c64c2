"""Co-occurrence edges join what is shared, in either direction, from the given edges alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest
import torch

from khop import EdgeTable, Graph, NodeTable, cooccurrence, open_graph, write_graph
from khop.draw import DrawKey, FrontierByType, NeighborsByType
from khop.graph.added_edges import with_edges
from khop.graph.features.store import FeatureStoreBase, Gathered, Wanted
from khop.graph.features.table import FeatureTable
from khop.graph.rule import Hop
from khop.graph.store import GraphStoreBase, csc_graph_from_edges
from khop.schema import NodeType

BUYS = ("user", "buys", "item")
# User 0 buys items 0, 1, 2; user 1 buys 0, 1; user 2 buys 1, 2 and 1 once more.
USERS = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])
ITEMS = torch.tensor([0, 1, 2, 0, 1, 1, 2, 1])
GRAPH = csc_graph_from_edges({"user": 3, "item": 4}, {BUYS: (USERS, ITEMS)})


def pairs(table: EdgeTable) -> list[tuple[int, int, int]]:
    columns = (table.sources, table.destinations, table.columns["count"])
    return list(zip(*(torch.as_tensor(column).tolist() for column in columns), strict=True))


def test_items_are_joined_through_users() -> None:
    assert pairs(cooccurrence(GRAPH, BUYS, through="user", min_count=2)) == [
        (1, 0, 2), (0, 1, 2), (2, 1, 3), (1, 2, 3),
    ]  # fmt: skip


def test_users_are_joined_through_items() -> None:
    assert pairs(cooccurrence(GRAPH, BUYS, through="item", min_count=3)) == [(2, 0, 3), (0, 2, 3)]


def test_by_default_three_ways_are_needed() -> None:
    assert pairs(cooccurrence(GRAPH, BUYS)) == [(2, 1, 3), (1, 2, 3)]


def test_of_edges_within_a_type_the_sources_are_shared() -> None:
    cites = ("paper", "cites", "paper")
    graph = csc_graph_from_edges(
        {"paper": 4}, {cites: (torch.tensor([0, 0, 1, 1]), torch.tensor([2, 3, 2, 3]))}
    )
    assert pairs(cooccurrence(graph, cites, min_count=2)) == [(3, 2, 2), (2, 3, 2)]


def test_a_folder_gives_what_memory_gives(tmp_path: Path) -> None:
    write_graph(tmp_path / "g", {"user": NodeTable(3), "item": NodeTable(4)}, {BUYS: EdgeTable(USERS, ITEMS)})
    graph = open_graph(tmp_path / "g")
    assert pairs(cooccurrence(graph, BUYS, min_count=1)) == pairs(cooccurrence(GRAPH, BUYS, min_count=1))


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(
        ValueError, match=r"no edge type \('user', 'sells', 'item'\); there are \[\('user', 'buys'"
    ):
        cooccurrence(GRAPH, ("user", "sells", "item"))
    with pytest.raises(ValueError, match="through is 'shop', must be one of its ends, 'user' or 'item'"):
        cooccurrence(GRAPH, BUYS, through="shop")


def test_a_graph_takes_the_edges_and_keeps_what_it_had() -> None:
    together = ("item", "together", "item")
    graph = Graph(GRAPH, FeatureTable({"item": {"x": torch.arange(4.0)}}))
    wider = graph.with_edges({together: cooccurrence(graph, BUYS)})
    assert wider.schema.edge_types == (BUYS, together)
    assert wider.csc(BUYS) is graph.csc(BUYS)
    assert wider.csc(together).indptr.tolist() == [0, 0, 1, 2, 2]
    assert wider.csc(together).indices.tolist() == [2, 1]
    assert isinstance(wider.features, FeatureTable)
    assert wider.features.columns[together]["count"].tolist() == [3, 3]
    assert wider.schema.column(together, "count").dtype == "int32"


def test_edges_that_are_there_already_are_refused() -> None:
    graph = Graph(GRAPH, FeatureTable({}))
    with pytest.raises(ValueError, match=r"\('user', 'buys', 'item'\): the graph already has it"):
        graph.with_edges({BUYS: EdgeTable(USERS, ITEMS)})
    with pytest.raises(ValueError, match="edge type 'buys': give source type, relation and destination type"):
        graph.csc("buys")  # type: ignore[arg-type]


class RemoteEdges(GraphStoreBase):
    """A graph store whose arrays are not in this process."""

    schema = GRAPH.schema

    def num_nodes(self, node_type: NodeType) -> int:
        return GRAPH.num_nodes(node_type)

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        raise OSError("the other process is gone")


class RemoteRows(FeatureStoreBase):
    """A feature store whose arrays are not in this process."""

    specs = MappingProxyType({})  # type: ignore[assignment]

    def gather(self, wanted: Wanted) -> Gathered:
        raise OSError("the other process is gone")


def test_parts_on_other_machines_are_not_joined() -> None:
    far = Graph(RemoteEdges(), FeatureTable({}))
    with pytest.raises(ValueError, match="the edges of a RemoteEdges are not in this process"):
        far.csc(BUYS)
    near = Graph(GRAPH, RemoteRows())
    with pytest.raises(ValueError, match="columns of edges cannot join RemoteRows; leave them out"):
        near.with_edges({("item", "together", "item"): cooccurrence(GRAPH, BUYS)})


def test_reverses_are_known() -> None:
    none = torch.empty(0, dtype=torch.int64)
    with pytest.raises(ValueError, match="no node type 'shop'"):
        with_edges(GRAPH, {("item", "of", "shop"): EdgeTable(none, none)})
    bought_by = ("item", "bought by", "user")
    wider = with_edges(GRAPH, {bought_by: EdgeTable(ITEMS, USERS, reverse_of=BUYS)})
    assert wider.schema.reverse_of == {bought_by: BUYS}


def test_a_graph_of_some_edge_types_has_the_node_types_at_their_ends() -> None:
    bought_by, tag = ("item", "bought by", "user"), ("tag", "on", "item")
    none = torch.empty(0, dtype=torch.int64)
    schema_edges = {BUYS: (USERS, ITEMS), bought_by: (ITEMS, USERS), tag: (none, none)}
    columns = {"tag": {"x": torch.ones(2)}, "item": {"x": torch.ones(4)}}
    whole = csc_graph_from_edges({"user": 3, "item": 4, "tag": 2}, schema_edges, columns=columns)
    whole = replace(whole, schema=replace(whole.schema, reverse_of={BUYS: bought_by, bought_by: BUYS}))
    some = Graph(whole, FeatureTable(columns)).only([bought_by, BUYS])
    assert some.schema.edge_types == (BUYS, bought_by)
    assert some.schema.node_types == ("user", "item")
    assert some.schema.reverse_of == {BUYS: bought_by, bought_by: BUYS}
    assert list(some.schema.columns) == ["item"]
    assert some.csc(BUYS) is whole.csc(BUYS)
    one = some.only([BUYS])
    assert (one.schema.edge_types, one.schema.reverse_of) == ((BUYS,), {})
    with pytest.raises(ValueError, match=r"no edge type \('tag', 'on', 'item'\)"):
        some.only([tag])


def test_an_item_bought_three_times_by_a_user_counts_with_another_alone() -> None:
    """As docs/link-prediction.md says: ways are counted, not users."""
    graph = csc_graph_from_edges(
        {"user": 1, "item": 2}, {BUYS: (torch.tensor([0, 0, 0, 0]), torch.tensor([0, 0, 0, 1]))}
    )
    assert pairs(cooccurrence(graph, BUYS, through="user", min_count=3)) == [(1, 0, 3), (0, 1, 3)]
