"""Links dealt to three parts: none in two, none heard of before it is asked, all by the seed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import khop
from khop import EdgeTable, Graph, LinkSplit, NodeTable, open_graph, split_links, write_graph
from khop.draw import DrawKey, FrontierByType, NeighborsByType
from khop.features.store import FeatureStoreBase, Gathered, Rows, Wanted
from khop.features.table import FeatureTable
from khop.graph.csc_graph import csc_graph_from_edges
from khop.graph.store import GraphStoreBase
from khop.rules.rule import Hop
from khop.schema import EdgeType, NodeType, Specs

BUYS, BOUGHT_BY = ("user", "buys", "item"), ("item", "bought_by", "user")
TO = ("node", "to", "node")
NODE = st.integers(0, 9)
PAIRS = st.lists(st.tuples(NODE, NODE), min_size=8, max_size=60)


def shop(pairs: list[tuple[int, int]]) -> Graph:
    """Users and items 0 to 9; the reverse type holds the same edges in another order."""
    users, items = torch.tensor(pairs).T
    topology = csc_graph_from_edges(
        {"user": 10, "item": 10}, {BUYS: (users, items), BOUGHT_BY: (items, users)}
    )
    schema = replace(topology.schema, reverse_of={BUYS: BOUGHT_BY})
    return Graph(replace(topology, schema=schema), FeatureTable({}))


def friends(pairs: list[tuple[int, int]], *, is_own_reverse: bool) -> Graph:
    """Both directions of every pair."""
    ends = torch.tensor([*pairs, *((v, u) for u, v in pairs if u != v)]).T
    topology = csc_graph_from_edges({"node": 10}, {TO: (ends[0], ends[1])})
    schema = replace(topology.schema, reverse_of={TO: TO} if is_own_reverse else {})
    return Graph(replace(topology, schema=schema), FeatureTable({}))


def edges_of(graph: Graph, edge_type: EdgeType) -> Counter[tuple[int, int]]:
    csc = graph.csc(edge_type)
    rows = torch.repeat_interleave(torch.arange(csc.num_rows), csc.indptr.diff())
    return Counter(zip(csc.indices.tolist(), rows.tolist(), strict=True))


def links_of(links: khop.Links, edge_type: EdgeType) -> list[tuple[int, int]]:
    return [(u, v) for u, v in links.edges[edge_type].T.tolist()]


@given(pairs=PAIRS, seed=st.integers(0, 99), disjoint=st.sampled_from([0.0, 0.4]))
def test_no_target_link_is_a_message_in_either_direction(
    pairs: list[tuple[int, int]], seed: int, disjoint: float
) -> None:
    graph = shop(pairs)
    split = split_links(graph, BUYS, val=0.2, test=0.2, disjoint_share=disjoint, negatives=0, seed=seed)
    asked = [set(links_of(links, BUYS)) for links in (split.train_links, split.val_links, split.test_links)]
    heard = [edges_of(part, BUYS) for part in (split.train, split.val, split.test)]
    for part, there in zip((split.train, split.val, split.test), heard, strict=True):
        assert Counter((u, v) for v, u in edges_of(part, BOUGHT_BY).elements()) == there
    assert not any(asked[i] & asked[j] for i, j in ((0, 1), (0, 2), (1, 2)))
    assert not (asked[1] | asked[2]) & set(heard[0])
    assert not (asked[1] | asked[2]) & set(heard[1])
    assert not asked[2] & set(heard[2])
    if disjoint and split.train_links.counts[BUYS] < sum(heard[1].values()):
        assert not asked[0] & set(heard[0])
    everything = Counter(links_of(split.test_links, BUYS)) + heard[2]
    assert everything == Counter(pairs)
    assert heard[1] + Counter(links_of(split.val_links, BUYS)) == heard[2]


@pytest.mark.parametrize("is_own_reverse", [True, False])
@given(pairs=PAIRS, seed=st.integers(0, 99))
def test_of_an_undirected_graph_both_directions_go_together(
    is_own_reverse: bool, pairs: list[tuple[int, int]], seed: int
) -> None:
    graph = friends(pairs, is_own_reverse=is_own_reverse)
    split = split_links(graph, TO, val=0.2, test=0.2, negatives=0, seed=seed)
    asked = [set(links_of(links, TO)) for links in (split.train_links, split.val_links, split.test_links)]
    both = [of_part | {(v, u) for u, v in of_part} for of_part in asked]
    assert not any(both[i] & both[j] for i, j in ((0, 1), (0, 2), (1, 2)))
    assert not (both[1] | both[2]) & set(edges_of(split.train, TO))
    assert not both[2] & set(edges_of(split.test, TO))
    assert set(edges_of(split.train, TO)) == both[0]
    assert not is_own_reverse or all(u <= v for of_part in asked for u, v in of_part)


def every_pair() -> list[tuple[int, int]]:
    return [(u, v) for u in range(10) for v in range(10) if (u + v) % 3]


def test_parts_are_as_large_as_asked() -> None:
    split = split_links(shop(every_pair()), BUYS, val=0.25, test=7, disjoint_share=0.5)
    counts = [links.counts[BUYS] for links in (split.train_links, split.val_links, split.test_links)]
    assert len(every_pair()) == 66
    assert counts == [21, 16, 7]
    assert sum(edges_of(split.train, BUYS).values()) == 22


def equal(first: LinkSplit, second: LinkSplit) -> bool:
    names = ("train_links", "val_links", "test_links")
    return all(torch.equal(getattr(first, n).edges[BUYS], getattr(second, n).edges[BUYS]) for n in names)


def test_the_seed_alone_decides() -> None:
    graph = shop(every_pair())
    assert equal(split_links(graph, BUYS, seed=3), split_links(graph, BUYS, seed=3))
    assert not equal(split_links(graph, BUYS, seed=3), split_links(graph, BUYS, seed=4))


def test_the_order_of_the_edges_does_not_decide() -> None:
    first, second = (split_links(shop(pairs), BUYS) for pairs in (every_pair(), every_pair()[::-1]))
    assert set(links_of(first.val_links, BUYS)) == set(links_of(second.val_links, BUYS))


def test_negatives_for_validation_and_test_are_fixed_and_no_edges_of_the_whole_graph() -> None:
    graph = shop(every_pair())
    splits = [split_links(graph, BUYS, val=0.3, test=0.3, negatives=5) for _ in range(2)]
    for name in ("val_links", "test_links"):
        negatives = [getattr(split, name).negatives[BUYS] for split in splits]
        assert torch.equal(*negatives)
        assert negatives[0].shape == (19, 5)
        sources = getattr(splits[0], name).edges[BUYS][0].tolist()
        drawn = {(u, v) for u, row in zip(sources, negatives[0].tolist(), strict=True) for v in row}
        assert not drawn & set(every_pair())
    assert splits[0].train_links.negatives is None


def written(path: Path) -> Graph:
    users, items = torch.tensor(every_pair()).T
    stars = EdgeTable(users, items, {"stars": users * 10 + items, "day": items.int()}, reverse_of=BOUGHT_BY)
    nodes = {
        "user": NodeTable(10, splits={"train": torch.arange(3)}),
        "item": NodeTable(columns={"x": torch.arange(10.0), "day": torch.arange(10)}),
    }
    return open_graph(write_graph(path, nodes, {BUYS: stars, BOUGHT_BY: EdgeTable(items, users)}))


def test_columns_of_a_folder_stay_with_their_edges_and_become_columns_of_links(tmp_path: Path) -> None:
    graph = written(tmp_path / "shop")
    split = split_links(graph, BUYS, label="stars", time="day", negatives=0)
    for part in (split.train, split.val, split.test):
        stars = part.columns[BUYS]["stars"].tolist()
        assert stars == [u * 10 + v for u, v in edges_of(part, BUYS).elements()]
        assert part.columns["item"]["x"] is graph.columns["item"]["x"]
        assert part.split("train")["user"].tolist() == [0, 1, 2]
    for links in (split.train_links, split.val_links, split.test_links):
        assert links.labels is not None
        assert links.times is not None
        assert links.labels[BUYS].tolist() == [u * 10 + v for u, v in links_of(links, BUYS)]
        assert torch.equal(links.times[BUYS], links.edges[BUYS][1])


def test_times_that_are_no_whole_numbers_are_named() -> None:
    users, items = torch.tensor(every_pair()).T
    likes = EdgeTable(users, items, {"when": users / 3})
    graph = shop(every_pair()).with_edges({("user", "likes", "item"): likes})
    with pytest.raises(ValueError, match=r"time 'when' of .*likes.* is float32: times are whole numbers"):
        split_links(graph, ("user", "likes", "item"), time="when")


def test_a_split_of_a_folder_is_trained_on(tmp_path: Path) -> None:
    split = split_links(written(tmp_path / "shop"), BUYS)
    sampler = khop.LinkSampler(split.train, [3, 2], negatives=khop.UniformNegatives(), exclude="edge+reverse")
    batches = list(khop.Loader(sampler, split.train_links, 10, columns=["x"]).epoch(0))
    assert sum(batch.links[BUYS].num_links for batch in batches) == split.train_links.counts[BUYS]
    evaluation = khop.LinkSampler(split.val, [3], negatives=khop.GivenNegatives(khop.NegativeMode.TRIPLET))
    batch = khop.Loader(evaluation, split.val_links, 100).batch(0, 0)
    assert batch.links[BUYS].negatives is not None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"edge_type": ("user", "likes", "item")}, "split_links of .*likes.*: not an edge type"),
        ({"val": 1.0}, "val 1.0: must be a share from 0 to below 1, or a number of links"),
        ({"test": -1}, "test -1: must be"),
        ({"val": 0.5, "test": 0.5}, "leave training none"),
        ({"disjoint_share": 1}, "disjoint_share 1: must be"),
        ({"label": "stars"}, "column 'stars' of .*: not in the graph"),
        ({"negatives": -1}, "negatives -1: must be 0 or more"),
        ({"negatives": 1.5}, "negatives 1.5: must be 0 or more"),
        ({"val": True}, "val True: must be a share"),
        ({"test": float("nan")}, "test nan: must be a share"),
        ({"edge_type": ()}, "split_links: no edge type is given; name at least one"),
        ({"edge_type": [BUYS, BOUGHT_BY]}, "split_links of .*bought_by.*: is given twice"),
        ({"edge_type": [BUYS, BUYS]}, "split_links of .*buys.*: is given twice"),
    ],
)
def test_what_cannot_be_split_is_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        split_links(shop(every_pair()), **{"edge_type": BUYS, **settings})  # type: ignore[arg-type]


def test_an_edge_type_without_edges_cannot_be_split() -> None:
    empty = csc_graph_from_edges(
        {"user": 3, "item": 3}, {BUYS: (torch.empty(0).long(), torch.empty(0).long())}
    )
    with pytest.raises(ValueError, match=r"links of .*buys.*: there are none to split; leave the edge type"):
        split_links(Graph(empty, FeatureTable({})), BUYS)


def test_several_types_are_split_at_once_each_as_it_would_be_alone() -> None:
    whole = shop(every_pair())
    likes = EdgeTable(*torch.tensor([(v, u) for u, v in every_pair()]).T)
    both = whole.with_edges({("user", "likes", "item"): likes})
    split = split_links(both, [BUYS, ("user", "likes", "item")], seed=5)
    assert equal(split, split_links(whole, BUYS, seed=5))
    asked = set(links_of(split.val_links, ("user", "likes", "item")))
    assert len(asked) == 6
    for part in (split.train, split.val):
        assert not asked & set(edges_of(part, ("user", "likes", "item")))
        assert not set(links_of(split.test_links, BUYS)) & set(edges_of(part, BUYS))
    assert split.val_links.negatives is not None
    assert set(split.val_links.negatives) == {BUYS, ("user", "likes", "item")}


def test_a_source_that_knows_every_destination_has_no_exact_negatives() -> None:
    with pytest.raises(ValueError, match="is connected to every 'item' node"):
        split_links(shop([(u, v) for u in range(10) for v in range(10)]), BUYS)


def test_edges_of_a_custom_store_cannot_be_split() -> None:
    class RemoteRows(GraphStoreBase):
        """A graph store of another process."""

        schema = shop(every_pair()).schema

        def num_nodes(self, node_type: NodeType) -> int:
            return 10

        def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
            raise OSError("the other process is gone")

    with pytest.raises(ValueError, match="the edges of a RemoteRows are not in this process"):
        split_links(Graph(RemoteRows(), FeatureTable({})), BUYS)


def test_edge_columns_of_other_parts_are_read_at_the_positions_before_the_split(tmp_path: Path) -> None:
    class RemoteRows(FeatureStoreBase):
        """A feature store of another process."""

        @property
        def specs(self) -> Specs:
            return here.features.specs

        def gather(self, wanted: Wanted) -> Gathered:
            return here.features.gather(wanted)

    here = written(tmp_path / "shop")
    graph = Graph(here.topology, RemoteRows())
    split, expected = split_links(graph, BUYS, negatives=0), split_links(here, BUYS, negatives=0)
    for part, of_one in zip((split.train, split.test), (expected.train, expected.test), strict=True):
        rows = Rows(torch.arange(part.csc(BUYS).num_edges), ("stars",))
        assert torch.equal(part.features.gather({BUYS: rows})[BUYS]["stars"], of_one.columns[BUYS]["stars"])
    with pytest.raises(ValueError, match="columns: those of a RemoteRows are not in this process"):
        split_links(graph, BUYS, negatives=0, label="stars")


def test_renumbering_does_not_decide() -> None:
    graph = shop(every_pair())
    order = torch.tensor([4, 0, 6, 2, 5, 1, 3, 9, 7, 8])  # the original id of each new number
    number = order.argsort()
    renumbered = shop([(u, int(number[v])) for u, v in every_pair()])
    topology = replace(renumbered.topology, originals={"item": order})  # type: ignore[type-var]
    split, other = split_links(graph, BUYS), split_links(replace(renumbered, topology=topology), BUYS)
    assert links_of(split.val_links, BUYS) == [(u, int(order[v])) for u, v in links_of(other.val_links, BUYS)]


@given(pairs=PAIRS, order=st.permutations(range(10)), seed=st.integers(0, 99))
def test_renumbering_does_not_decide_which_direction_of_an_undirected_link_is_asked(
    pairs: list[tuple[int, int]], order: list[int], seed: int
) -> None:
    number = torch.tensor(order).argsort().tolist()
    renumbered = friends([(number[u], number[v]) for u, v in pairs], is_own_reverse=True)
    topology = replace(renumbered.topology, originals={"node": torch.tensor(order)})  # type: ignore[type-var]
    split, other = (
        split_links(graph, TO, val=0.2, test=0.2, negatives=0, seed=seed)
        for graph in (friends(pairs, is_own_reverse=True), replace(renumbered, topology=topology))
    )
    for name in ("train_links", "val_links", "test_links"):
        theirs = [(order[u], order[v]) for u, v in links_of(getattr(other, name), TO)]
        assert Counter(links_of(getattr(split, name), TO)) == Counter(theirs)
