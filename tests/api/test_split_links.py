"""Links dealt to three parts: none in two, none heard of before it is asked, all by the seed.

A split as a folder: what is read back is what was split, mapped, and holds no link that is held out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import khop
from khop import EdgeTable, Graph, LinkSplit, NodeTable, open_graph, split_links, write_graph
from khop.draw import DrawKey, FrontierByType, NeighborsByType
from khop.graph.features.store import FeatureStoreBase, Gathered, Rows, Wanted
from khop.graph.features.table import FeatureTable
from khop.graph.rule import Hop
from khop.graph.store import GraphStoreBase, csc_graph_from_edges
from khop.graph.verify import verify_folder
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
    with pytest.raises(ValueError, match=r"time 'when' of .*likes.* is float32: times must be whole numbers"):
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
        ({"val": 0.5, "test": 0.5}, "leave no links for training"),
        ({"disjoint_share": 1}, "disjoint_share 1: must be"),
        ({"label": "stars"}, "column 'stars' of .*: not in the graph"),
        ({"negatives": -1}, "negatives -1: must be 0 or more"),
        ({"negatives": 1.5}, "negatives 1.5: must be 0 or more"),
        ({"val": True}, "val True: must be a share"),
        ({"test": float("nan")}, "test nan: must be a share"),
        ({"edge_type": ()}, "split_links: no edge type is given; name at least one"),
        ({"edge_type": [BUYS, BOUGHT_BY]}, "split_links of .*bought_by.*: given twice"),
        ({"edge_type": [BUYS, BUYS]}, "split_links of .*buys.*: given twice"),
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


LINK_SPLIT_FOLDER_BUYS, LINK_SPLIT_FOLDER_BOUGHT_BY, LINK_SPLIT_FOLDER_TO = (
    ("user", "buys", "item"),
    ("item", "bought_by", "user"),
    ("user", "to", "user"),
)
PARTS = ("train", "val", "test")
Pair = tuple[int, int]


def link_split_folder_written(path: Path, pairs: list[Pair]) -> Graph:
    """Purchases, some more than once, both ways; and friendships, which are their own reverse."""
    users, items = torch.tensor(pairs).T
    both = torch.cat([users, items]), torch.cat([items, users])
    facts = {"stars": users * 10 + items, "day": (items * 3).int()}
    nodes = {"user": NodeTable(10), "item": NodeTable(columns={"x": torch.randn(10, 500)})}
    edges = {
        LINK_SPLIT_FOLDER_BUYS: EdgeTable(users, items, facts, reverse_of=LINK_SPLIT_FOLDER_BOUGHT_BY),
        LINK_SPLIT_FOLDER_BOUGHT_BY: EdgeTable(items.flip(0), users.flip(0)),
        LINK_SPLIT_FOLDER_TO: EdgeTable(*both, reverse_of=LINK_SPLIT_FOLDER_TO),
    }
    return open_graph(write_graph(path, nodes, edges))


def pairs_on_disk(folder: Path, edge_type: EdgeType) -> set[Pair]:
    """The edges of a graph folder, read without khop."""
    home = folder / "edges" / "__".join(edge_type)
    indptr, indices = np.load(home / "indptr.npy"), np.load(home / "indices.npy")
    rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    return set(zip(indices.tolist(), rows.tolist(), strict=True))


@pytest.mark.core(1)
@pytest.mark.parametrize("disjoint", [0.0, 0.5])
def test_on_disk_no_link_that_is_held_out_is_left_in_either_direction(
    tmp_path: Path, disjoint: float
) -> None:
    """Nor any of the edges that stand beside it: every pair here is bought one to four times."""
    random = torch.Generator().manual_seed(2)
    pairs = [(u, v) for u in range(10) for v in range(10) if (u + 2 * v) % 3]
    bought = [pair for pair in pairs for _ in range(int(torch.randint(1, 5, (1,), generator=random)))]
    graph = link_split_folder_written(tmp_path / "shop", bought)
    split = split_links(
        graph, [LINK_SPLIT_FOLDER_BUYS, LINK_SPLIT_FOLDER_TO], 0.2, 0.2, disjoint_share=disjoint, negatives=0
    )
    out = split.save(tmp_path / "split")
    asked = {
        p: {t: pairs_on_disk(out / f"{p}_links", t) for t in (LINK_SPLIT_FOLDER_BUYS, LINK_SPLIT_FOLDER_TO)}
        for p in PARTS
    }
    for hears, later in (("train", ("val", "test")), ("val", ("val", "test")), ("test", ("test",))):
        for part in (*later, "train") if disjoint and hears == "train" else later:
            for edge_type, reverse in (
                (LINK_SPLIT_FOLDER_BUYS, LINK_SPLIT_FOLDER_BOUGHT_BY),
                (LINK_SPLIT_FOLDER_TO, LINK_SPLIT_FOLDER_TO),
            ):
                held_out = asked[part][edge_type]
                turned = {(v, u) for u, v in held_out}
                assert held_out
                assert not held_out & pairs_on_disk(out / hears, edge_type)
                assert not turned & pairs_on_disk(out / hears, reverse)
    heard = pairs_on_disk(out / "test", LINK_SPLIT_FOLDER_BUYS)
    assert heard | asked["test"][LINK_SPLIT_FOLDER_BUYS] == set(pairs)


@pytest.fixture
def split(tmp_path: Path) -> LinkSplit:
    pairs = [(u, v) for u in range(10) for v in range(10) if (u + v) % 3]
    graph = link_split_folder_written(tmp_path / "shop", pairs)
    return split_links(graph, LINK_SPLIT_FOLDER_BUYS, label="stars", time="day", negatives=3)


def assert_equal(first: LinkSplit, second: LinkSplit) -> None:
    for part in PARTS:
        ours, theirs = getattr(first, part), getattr(second, part)
        assert ours.schema == theirs.schema
        for edge_type in ours.schema.edge_types:
            assert torch.equal(ours.csc(edge_type).indptr, theirs.csc(edge_type).indptr)
            assert torch.equal(ours.csc(edge_type).indices, theirs.csc(edge_type).indices)
        assert torch.equal(
            ours.columns[LINK_SPLIT_FOLDER_BUYS]["stars"], theirs.columns[LINK_SPLIT_FOLDER_BUYS]["stars"]
        )
        ours, theirs = getattr(first, f"{part}_links"), getattr(second, f"{part}_links")
        for fact in ("edges", "labels", "times", "negatives"):
            left, right = getattr(ours, fact), getattr(theirs, fact)
            assert (left is None) == (right is None)
            assert left is None or (
                set(left) == set(right)
                and torch.equal(left[LINK_SPLIT_FOLDER_BUYS], right[LINK_SPLIT_FOLDER_BUYS])
            )


def test_a_split_is_read_as_it_was_made_and_trained_on(split: LinkSplit, tmp_path: Path) -> None:
    opened = LinkSplit.open(split.save(tmp_path / "split"))
    assert_equal(opened, split)
    sampler = khop.LinkSampler(opened.train, [3, 2], exclude="edge+reverse")
    links = replace(opened.train_links, times=None)
    batches = list(khop.Loader(sampler, links, 10, columns={"item": ["x"]}).epoch(0))
    assert (
        sum(batch.links[LINK_SPLIT_FOLDER_BUYS].num_links for batch in batches)
        == split.train_links.counts[LINK_SPLIT_FOLDER_BUYS]
    )


def test_links_in_any_order_keep_it(split: LinkSplit, tmp_path: Path) -> None:
    order = torch.randperm(
        split.val_links.counts[LINK_SPLIT_FOLDER_BUYS], generator=torch.Generator().manual_seed(1)
    )
    shuffled = khop.Links(
        {LINK_SPLIT_FOLDER_BUYS: split.val_links.edges[LINK_SPLIT_FOLDER_BUYS][:, order]},
        {LINK_SPLIT_FOLDER_BUYS: order.float()},
    )
    opened = LinkSplit.open(replace(split, val_links=shuffled).save(tmp_path / "split"))
    assert torch.equal(opened.val_links.edges[LINK_SPLIT_FOLDER_BUYS], shuffled.edges[LINK_SPLIT_FOLDER_BUYS])
    assert opened.val_links.labels is not None
    assert opened.val_links.labels[LINK_SPLIT_FOLDER_BUYS].tolist() == order.tolist()


def mapped_file(tensor: torch.Tensor) -> str:
    """The file whose pages a tensor lies in; "" where it is memory of the process."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(end, 16) for end in line.split()[0].split("-"))
        if first <= tensor.data_ptr() < last:
            return line[line.index("/") :] if "/" in line else ""
    return ""


def test_what_is_opened_is_mapped_and_what_parts_share_lies_on_the_disk_once(
    split: LinkSplit, tmp_path: Path
) -> None:
    out = split.save(tmp_path / "split")
    opened = LinkSplit.open(out)
    assert opened.val_links.negatives is not None
    for tensor in (
        opened.test.csc(LINK_SPLIT_FOLDER_BUYS).indices,
        opened.train.columns["item"]["x"],
        opened.train_links.edges[LINK_SPLIT_FOLDER_BUYS],
        opened.val_links.negatives[LINK_SPLIT_FOLDER_BUYS],
    ):
        assert mapped_file(tensor).startswith(str(out))
    features = {(out / part / "nodes/item/x.npy").stat().st_ino for part in PARTS}
    assert len(features) == 1
    used = {f.stat().st_ino: f.stat().st_size for f in out.rglob("*.npy")}
    assert sum(used.values()) < 1.5 * sum(f.stat().st_size for f in (tmp_path / "shop").rglob("*.npy"))
    assert [finding for path in out.iterdir() for finding in verify_folder(path)] == []


def test_a_file_system_without_hard_links_holds_copies(
    split: LinkSplit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no such thing here")

    monkeypatch.setattr("os.link", refuse)
    assert_equal(LinkSplit.open(split.save(tmp_path / "split")), split)


def test_a_split_that_is_interrupted_leaves_nothing(split: LinkSplit, tmp_path: Path) -> None:
    def interrupt(what: str, done: int, total: int) -> None:
        if "negatives" in what:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        split.save(tmp_path / "split", notice=interrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["shop"]


def test_what_is_no_split_or_stands_in_the_way_is_named(split: LinkSplit, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"shop: not a link split, it has no train_links; write one with `khop gr"
    ):
        LinkSplit.open(tmp_path / "shop")
    with pytest.raises(ValueError, match=r"nowhere: not a link split"):
        LinkSplit.open(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="shop: exists already; remove it or choose another name"):
        split.save(tmp_path / "shop")
    out = split.save(tmp_path / "split")
    (out / "val" / "edges/user__buys__item/indices.npy").unlink()
    with pytest.raises(ValueError, match=r"indices.npy: is missing"):
        LinkSplit.open(out)
