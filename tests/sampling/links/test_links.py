"""Links as seeds: ends as rows, negatives beside them, no message along what is to be predicted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from khop import (
    DegreeNegatives,
    DrawKey,
    Expansion,
    GivenNegatives,
    Links,
    LinkSampler,
    Loader,
    NegativeMode,
    NeighborSampler,
    Sample,
    TableNegatives,
    Temporal,
    UniformNegatives,
)
from khop.draw import DrawnNegatives, FrontierByType, NeighborsByType
from khop.errors import Unsupported
from khop.graph.rule import Hop
from khop.graph.store import GraphStoreBase, csc_graph_from_edges
from khop.sampling.sampler import Trees
from khop.sampling.seeds import SeedOrder
from khop.schema import EdgeType, NodeType
from khop.testing.sampler import PROMISES, Make
from reference.hops import as_plain
from support.random_graphs import EDGE, ring
from support.shop_links import BOUGHT_BY, BUYS, VIEWS, ends, link_seeds, shop

KEY = DrawKey(11)
EXPANSIONS = pytest.mark.parametrize("expansion", list(Expansion))


@pytest.mark.core(9)
@EXPANSIONS
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_of_seed_nodes_it_keeps(promise: Callable[[Make], None], expansion: Expansion) -> None:
    promise(lambda graph: LinkSampler(graph, [3, 2], expansion=expansion, edge_ids=True))


@EXPANSIONS
def test_links_of_several_types_name_the_rows_of_their_ends(expansion: Expansion) -> None:
    asked = {BUYS: [(0, 2), (4, 2), (0, 2)], VIEWS: [(0, 5)], BOUGHT_BY: []}
    sample = LinkSampler(shop(), [3, 2], expansion=expansion).sample(link_seeds(asked), KEY)
    assert {edge_type: ends(sample, edge_type) for edge_type in asked} == asked
    assert sample.nodes["user"][sample.seed_index["user"]].tolist() == [0, 4]
    assert sample.links[VIEWS].positions.tolist() == [3]
    assert sample.links[BUYS].labels is None


def test_seed_nodes_and_links_stand_in_one_batch() -> None:
    seeds = replace(link_seeds({BUYS: [(3, 1), (5, 0)]}), nodes={"user": torch.tensor([5, 5, 2])})
    sample = LinkSampler(shop(), [2]).sample(seeds, KEY)
    assert sample.nodes["user"][sample.seed_index["user"]].tolist() == [5, 5, 2, 3, 5]
    assert ends(sample, BUYS) == [(3, 1), (5, 0)]


LABELS = torch.tensor([2, 1])
GIVEN = torch.tensor([[5, 3], [0, 0]])


def test_binary_negatives_are_pairs_after_the_links() -> None:
    sampler = LinkSampler(shop(), [2], negatives=GivenNegatives(NegativeMode.BINARY))
    seeds = link_seeds({BUYS: [(0, 2), (4, 4)]}, labels=LABELS, negatives=GIVEN)
    sample = sampler.sample(seeds, KEY)
    assert ends(sample, BUYS) == [(0, 2), (4, 4), (0, 5), (0, 3), (4, 0), (4, 0)]
    rows = sample.links[BUYS]
    assert rows.labels is not None
    assert rows.labels.tolist() == [2, 1, 0, 0, 0, 0]
    assert (rows.num_links, rows.pairs_per_link, rows.negatives) == (2, 3, None)


def test_links_without_labels_are_labeled_one_beside_binary_negatives() -> None:
    sampler = LinkSampler(shop(), [2], negatives=GivenNegatives())
    rows = sampler.sample(link_seeds({BUYS: [(0, 2), (4, 4)]}, negatives=GIVEN), KEY).links[BUYS]
    assert rows.labels is not None
    assert (rows.labels.tolist(), rows.labels.dtype) == ([1, 1, 0, 0, 0, 0], torch.float32)


def test_negatives_of_triplets_stand_beside_their_links() -> None:
    sampler = LinkSampler(shop(), [2], negatives=GivenNegatives(NegativeMode.TRIPLET))
    sample = sampler.sample(link_seeds({BUYS: [(0, 2), (4, 4)]}, labels=LABELS, negatives=GIVEN), KEY)
    rows = sample.links[BUYS]
    assert rows.negatives is not None
    items = sample.nodes["item"][sample.seed_index["item"]]
    assert items[rows.negatives].tolist() == GIVEN.tolist()
    assert rows.labels is LABELS
    assert rows.pairs_per_link == 1


@pytest.mark.parametrize("trees", ["merged", "disjoint"])
@pytest.mark.parametrize(
    "rule", [UniformNegatives(3, exact=True), DegreeNegatives(2, NegativeMode.TRIPLET, exact=True)]
)
def test_drawn_negatives_are_no_edges(rule: DrawnNegatives, trees: Trees) -> None:
    graph, links = shop(), [(0, 2), (5, 1), (7, 5)]
    asked = link_seeds({BUYS: links})
    sample = LinkSampler(graph, [2, 2], negatives=rule, trees=trees).sample(asked, KEY)
    rows = sample.links[BUYS]
    nodes = {t: sample.nodes[t][index] for t, index in sample.seed_index.items()}
    if rows.negatives is None:
        pairs = ends(sample, BUYS)[3:]
    else:
        pairs = [
            (u, int(v)) for (u, _), row in zip(links, nodes["item"][rows.negatives], strict=True) for v in row
        ]
    assert len(pairs) == 3 * rule.per_positive
    assert all(user % 2 != item % 2 and item != user + 1 for user, item in pairs)


@pytest.mark.parametrize("rule", [UniformNegatives(3, group=2), DegreeNegatives(3, group=2)], ids=str)
def test_neighbors_in_the_global_order_share_their_negatives_on_any_number_of_ranks(
    rule: DrawnNegatives,
) -> None:
    rule = replace(rule, mode=NegativeMode.TRIPLET)
    links = Links({BUYS: torch.stack([torch.arange(30) % 8, torch.arange(30) % 6])})
    of_positions: dict[int, list[int]] = {}
    for rank in range(3):
        order = SeedOrder(links, batch_size=10, shuffle=True, run_seed=4, rank=rank, world_size=3)
        for step in range(3):
            sample = LinkSampler(shop(), [2], negatives=rule).sample(order.share(0, step), KEY)
            rows = sample.links[BUYS]
            assert rows.negatives is not None
            items = sample.nodes["item"][sample.seed_index["item"]]
            of_positions |= dict(zip(rows.positions.tolist(), items[rows.negatives].tolist(), strict=True))
    assert all(of_positions[2 * n] == of_positions[2 * n + 1] for n in range(15))
    assert len({tuple(row) for row in of_positions.values()}) > 5
    with pytest.raises(ValueError, match="group 2 with exact: exact negatives differ by source"):
        replace(rule, exact=True)


def test_disjoint_trees_give_every_end_a_row() -> None:
    sample = LinkSampler(shop(), [2], trees="disjoint").sample(link_seeds({BUYS: [(0, 2), (0, 2)]}), KEY)
    assert sample.nodes["user"][sample.seed_index["user"]].tolist() == [0, 0]
    assert sample.links[BUYS].source.tolist() == [0, 1]
    assert sample.trees is not None


@pytest.mark.core(1)
@pytest.mark.parametrize("exclude", [None, "edge", "edge+reverse"])
@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_have_the_links_negatives_and_neighbors_of_the_global_batch(
    exclude: str | None, world_size: int
) -> None:
    users, items = (torch.arange(96) * 5 % 8), (torch.arange(96) * 7 % 6)
    links = Links({BUYS: torch.stack([users, items]), BOUGHT_BY: torch.stack([items, users]).flip(1)})
    sampler = LinkSampler(shop(), [2, 2], negatives=UniformNegatives(2), exclude=exclude, edge_ids=True)
    order = SeedOrder(links, batch_size=20, shuffle=True, run_seed=4)

    def made(rank: int, of: int) -> Sample:
        return sampler.sample(replace(order, rank=rank, world_size=of).share(1, 2), KEY)

    whole, parts = made(0, 1), [made(rank, world_size) for rank in range(world_size)]
    for edge_type in (BUYS, BOUGHT_BY):
        counts = [part.links[edge_type].num_links for part in parts]
        pairs = [ends(part, edge_type) for part in parts]
        links_first = [pair for of_part, n in zip(pairs, counts, strict=True) for pair in of_part[:n]]
        then_negatives = [pair for of_part, n in zip(pairs, counts, strict=True) for pair in of_part[n:]]
        assert links_first + then_negatives == ends(whole, edge_type)
        positions = [p for part in parts for p in part.links[edge_type].positions.tolist()]
        assert positions == whole.links[edge_type].positions.tolist()
    rows_of_whole = last_rows(whole)
    for part in parts:
        assert all(rows_of_whole[key] == row for key, row in last_rows(part).items())


def last_rows(sample: Sample) -> dict[tuple[EdgeType, int], list[int]]:
    """What the seeds drew: (edge type, destination) -> edge ids."""
    found: dict[tuple[EdgeType, int], list[int]] = {}
    for edge_type, adjacency in sample.blocks[-1].adjacencies.items():
        assert adjacency.edge_ids is not None
        rows = torch.split(adjacency.edge_ids, adjacency.indptr.diff().tolist())
        nodes = sample.nodes[edge_type[2]][: adjacency.num_dst].tolist()
        found |= {(edge_type, node): row.tolist() for node, row in zip(nodes, rows, strict=True)}
    return found


@pytest.mark.parametrize(
    ("settings", "facts", "message"),
    [
        ({"negatives": GivenNegatives()}, {}, "have no negatives, which GivenNegatives"),
        ({}, {"negatives": GIVEN}, "have negatives, which negatives=None would not use"),
        ({"negatives": GivenNegatives()}, {"negatives": GIVEN + 2}, "negatives of .*: there is no node 7"),
        (
            {"negatives": GivenNegatives()},
            {"negatives": torch.full_like(GIVEN, -1)},
            "^negatives of .*: padding with -1 is only for khop.evaluate_links; give a loader the same",
        ),
        (
            {"negatives": TableNegatives(torch.full((8, 2), -1))},
            {},
            "^table of negatives of .*: padding with -1 is only for khop.evaluate_links",
        ),
        (
            {"negatives": UniformNegatives()},
            {"labels": torch.tensor([0, 3])},
            "labels of .* contain 0, which is the label",
        ),
        ({}, {"times": LABELS}, r"links of .* have times, but Uniform\(.*\) ignores them"),
        ({"rule": Temporal("day")}, {}, r"links of .* have no times, which Temporal\(.*\) needs"),
    ],
)
def test_columns_that_do_not_fit_the_sampler_are_named(
    settings: dict[str, object], facts: dict[str, Tensor], message: str
) -> None:
    graph = csc_graph_from_edges(
        {"user": 8, "item": 6},
        {BUYS: (torch.tensor([0]), torch.tensor([2]))},
        columns={"user": {"day": torch.arange(8)}},
    )
    sampler = LinkSampler(graph, [2], **settings)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        sampler.sample(link_seeds({BUYS: [(0, 2), (4, 4)]}, **facts), KEY)


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ({("user", "likes", "item"): [(0, 0)]}, "links of .*likes.*: not an edge type; there are"),
        ({BUYS: [(0, 0), (8, 0)]}, "links of .*, sources: there is no node 8; ids go from 0 to 7"),
        ({BUYS: [(0, -1)]}, "links of .*, destinations: there is no node -1"),
    ],
)
def test_links_that_are_not_of_the_graph_are_named(
    edges: dict[EdgeType, list[tuple[int, int]]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        LinkSampler(shop(), [2]).sample(link_seeds(edges), KEY)


@pytest.mark.parametrize("negatives", ["uniform", 2])
def test_negatives_that_are_none_are_named_at_once(negatives: object) -> None:
    with pytest.raises(ValueError, match=r"negatives .*: must be khop.UniformNegatives\(...\), Degree"):
        LinkSampler(shop(), [2], negatives=negatives)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"mode 'pair': must be one of \['binary', 'triplet'\]"):
        UniformNegatives(mode="pair")  # type: ignore[arg-type]


def test_links_are_no_seeds_of_a_node_sampler() -> None:
    with pytest.raises(ValueError, match=r"sampled by khop.LinkSampler\(graph, fanouts\)"):
        NeighborSampler(shop(), [2]).sample(link_seeds({BUYS: [(0, 2)]}), KEY)


class Bare(GraphStoreBase):
    """A graph store and no more."""

    schema = shop().schema

    def num_nodes(self, node_type: NodeType) -> int:
        return shop().num_nodes(node_type)

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        return shop().sample_hop(frontier, hop, key)


def test_a_graph_that_cannot_draw_negatives_is_named() -> None:
    sampler = LinkSampler(Bare(), [2], negatives=UniformNegatives())
    with pytest.raises(Unsupported, match="Bare does not draw negatives; give negatives with"):
        sampler.graph.prepare(sampler.needs([BUYS]))
    with pytest.raises(Unsupported, match="Bare does not draw negatives; give negatives with"):
        Loader(sampler, Links({BUYS: torch.tensor([[1], [0]])}), 1).batch(0, 0)


@given(
    pairs=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=30),
    days=st.lists(st.integers(0, 4), min_size=12, max_size=12),
    number=st.integers(0, 99),
)
def test_in_time_no_edge_no_node_and_no_negative_is_later_than_its_link(
    pairs: list[tuple[int, int]], days: list[int], number: int
) -> None:
    users, items = torch.tensor(pairs).T
    columns = {"user": {"day": torch.tensor(days[:6])}, "item": {"day": torch.tensor([0, *days[7:]])}}
    edges = {BUYS: (users, items), BOUGHT_BY: (items, users)}
    graph = csc_graph_from_edges({"user": 6, "item": 6}, edges, columns=columns, sort_by="day")
    links, times = [(0, 0), (3, 2), (0, 0)], torch.tensor([1, 4, 3])
    sampler = LinkSampler(graph, [4, 4], rule=Temporal("day"), negatives=UniformNegatives(3))
    sample = sampler.sample(link_seeds({BUYS: links}, times=times), DrawKey(number))
    assert ends(sample, BUYS)[:3] == links
    for (_, item), time in zip(ends(sample, BUYS)[3:], times.repeat_interleave(3).tolist(), strict=True):
        assert int(columns["item"]["day"][item]) <= time
    limits = torch.cat([times, times, times.repeat(3)])  # of each tree: the first negative of every link, ...
    assert sample.trees is not None
    for node_type, ids in sample.nodes.items():
        is_drawn = torch.ones(ids.numel(), dtype=torch.bool)
        is_drawn[sample.seed_index[node_type]] = False
        of_tree = limits[sample.trees[node_type]]
        assert bool((columns[node_type]["day"][ids] <= of_tree)[is_drawn].all())


@pytest.mark.core(1)
@EXPANSIONS
@pytest.mark.parametrize("trees", ["merged", "disjoint"])
@pytest.mark.parametrize("threads", [2, 3, 8])
def test_a_sample_of_links_split_over_threads_has_the_same_bits(
    expansion: Expansion, trees: Trees, threads: int
) -> None:
    sources = torch.arange(0, 6000, 5)
    sampler = LinkSampler(
        ring(6000, 9),
        [5, 4],
        negatives=UniformNegatives(2, exact=True),
        exclude="edge",
        expansion=expansion,
        edge_ids=True,
        trees=trees,
    )
    wanted = link_seeds({EDGE: [(u, (u + 6000 - 1) % 6000) for u in sources.tolist()]})
    alone, split = sampler.sample(wanted, KEY), sampler.with_threads(threads).sample(wanted, KEY)
    assert as_plain(split) == as_plain(alone)
    assert ends(split, EDGE) == ends(alone, EDGE)


def test_a_batch_made_here_and_now_is_split_over_torchs_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    whole = LinkSampler.with_threads

    def noted(sampler: LinkSampler, threads: int) -> LinkSampler:
        asked.append(threads)
        return whole(sampler, threads)

    monkeypatch.setattr(LinkSampler, "with_threads", noted)
    Loader(LinkSampler(ring(10, 2), [1]), Links({EDGE: torch.tensor([[1], [0]])}), 1).batch(0, 0)
    assert asked == [torch.get_num_threads()]
    with pytest.raises(ValueError, match="threads 0: must be a whole number, 1 or more"):
        LinkSampler(ring(5, 2), [1]).with_threads(0)


def test_links_count_equally_if_their_types_have_different_numbers_of_negatives() -> None:
    links = {BUYS: torch.tensor([[0, 1], [2, 3]]), VIEWS: torch.tensor([[4], [5]])}
    negatives = {BUYS: torch.tensor([[1], [2]]), VIEWS: torch.tensor([[1, 2, 3, 4]])}
    sampler = LinkSampler(shop(), [2], negatives=GivenNegatives(NegativeMode.BINARY))
    batch = Loader(sampler, Links(links, negatives=negatives), 3, columns=[]).batch(0, 0)
    sizes = [rows.source.numel() for rows in batch.links.values()]
    assert sizes == [4, 5]
    assert float(batch.global_mean(torch.ones(9))) == pytest.approx(1)
    losses = torch.cat([torch.full((4,), 6.0), torch.zeros(5)])
    assert float(batch.global_mean(losses)) == pytest.approx(6 * 2 / 3)
