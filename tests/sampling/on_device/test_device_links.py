"""Batches of links made on the device with static shapes are those of the CPU, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from khop import (
    DrawKey,
    Expansion,
    LinkSampler,
    NegativeMode,
    Seeds,
    SymmetricSum,
    Temporal,
    UniformNegatives,
)
from khop.draw import DegreeNegatives, DrawnNegatives
from khop.graph.store import CscGraph, csc_graph_from_edges
from khop.sampling.links.exclusion import Exclude
from khop.sampling.on_device.batch_plan import BatchPlan
from khop.sampling.on_device.device_batch import DeviceBatch, exact_sample
from khop.sampling.on_device.device_sampler import DeviceSampler, measured_capacities
from khop.sampling.on_device.type_nodes import counts_of
from khop.sampling.sampler import Trees
from khop.sampling.seeds import LinkSeeds, SeedLinks
from support.host_reads import counting
from support.same_samples import assert_same
from support.triton_rows import DEVICE

BUYS, BOUGHT_BY, VIEWS = ("user", "buys", "item"), ("item", "bought by", "user"), ("user", "views", "item")
EXPANSIONS = pytest.mark.parametrize("expansion", list(Expansion))


def pairs(count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randint(most, (count,), generator=generator) for most in (30, 20)])


def shop() -> CscGraph:
    """Users buy and view items at some time; what is bought has a reverse. Repeated edges are among them."""
    bought, viewed = pairs(120, 0), pairs(90, 1)
    days = torch.arange(120) % 9
    columns = {BUYS: {"day": days}, BOUGHT_BY: {"day": days}, VIEWS: {"day": torch.arange(90) % 7}}
    edges = {BUYS: (bought[0], bought[1]), BOUGHT_BY: (bought[1], bought[0]), VIEWS: (viewed[0], viewed[1])}
    graph = csc_graph_from_edges({"user": 30, "item": 20}, edges, columns=columns, sort_by="day")
    return replace(graph, schema=replace(graph.schema, reverse_of={BUYS: BOUGHT_BY, BOUGHT_BY: BUYS}))


def links(
    count: int, seed: int, times: Tensor | None = None, nodes: dict[str, Tensor] | None = None
) -> Seeds:
    """Links that are edges of the graph, and others; some stand twice."""
    ends = torch.cat([pairs(count // 2, 0), pairs(count - count // 2, seed)], dim=1)
    own = SeedLinks(ends, torch.arange(count) + 100 * seed, ends, times=times)
    nodes = {} if nodes is None else nodes
    positions = {t: torch.arange(ids.numel()) for t, ids in nodes.items()}
    return Seeds(nodes, positions, links=LinkSeeds({BUYS: own}, DrawKey(seed)))


def check(sampler: LinkSampler, batches: list[Seeds]) -> None:
    warm_up = [(seeds, DrawKey(number)) for number, seeds in enumerate(batches)]
    device_sampler = DeviceSampler.measured(sampler, warm_up, DEVICE)
    for seeds, key in warm_up[::-1]:
        assert_same(device_sampler.sample(seeds, key), sampler.sample(seeds, key))
    assert device_sampler.overflows == 0


LAYERED, SUBGRAPH = Expansion
BOTH = Exclude.EDGE_AND_REVERSE


@pytest.mark.core(1)
@pytest.mark.parametrize(
    ("expansion", "trees", "exclude", "fanouts"),
    [
        (LAYERED, "merged", BOTH, [4, 2]),
        (SUBGRAPH, "disjoint", BOTH, [4, 2]),
        (LAYERED, "disjoint", BOTH, [-1, -1]),
        (SUBGRAPH, "merged", BOTH, [-1, -1]),
        *(
            pytest.param(*of, marks=pytest.mark.long)
            for of in [
                (LAYERED, "merged", None, [4, 2]),
                (SUBGRAPH, "merged", None, [-1, 2]),
                (LAYERED, "disjoint", BOTH, [4, 2]),
                (SUBGRAPH, "merged", BOTH, [4, 2]),
                (LAYERED, "merged", BOTH, [-1, -1]),
                (SUBGRAPH, "disjoint", BOTH, [-1, -1]),
            ]
        ),
    ],
    ids=str,
)
def test_links_with_negatives_and_excluded_edges(
    expansion: Expansion, trees: Trees, exclude: Exclude | None, fanouts: list[int]
) -> None:
    sampler = LinkSampler(
        shop(),
        fanouts,
        negatives=UniformNegatives(2, exact=True),
        exclude=exclude,
        expansion=expansion,
        edge_ids=True,
        trees=trees,
    )
    check(sampler, [links(4, 2), links(3, 3)])


@pytest.mark.long
@EXPANSIONS
def test_excluded_edges_count_in_the_weights_of_sums(expansion: Expansion) -> None:
    sampler = LinkSampler(shop(), [2, -1], rule=SymmetricSum(), exclude=BOTH, expansion=expansion)
    check(sampler, [links(8, 2), links(6, 3)])


@pytest.mark.long
@pytest.mark.parametrize("negatives", [None, DegreeNegatives(3, NegativeMode.TRIPLET)])
def test_links_beside_seed_nodes(negatives: DrawnNegatives | None) -> None:
    sampler = LinkSampler(shop(), [5], negatives=negatives, exclude="edge")
    nodes = {"item": torch.tensor([3, 3, 7])}
    check(sampler, [links(6, 2, nodes=nodes), links(6, 3), Seeds(nodes, {"item": torch.arange(3)})])


@pytest.mark.long
@EXPANSIONS
def test_links_with_times(expansion: Expansion) -> None:
    sampler = LinkSampler(
        shop(),
        [3, 2],
        rule=Temporal("day"),
        negatives=UniformNegatives(2),
        exclude="edge+reverse",
        expansion=expansion,
    )
    check(sampler, [links(4, 2, torch.arange(4) * 2), links(3, 3, torch.tensor([0, 8, -1]))])


def test_more_excluded_edges_than_there_is_room_for_are_an_overflow() -> None:
    sampler = LinkSampler(shop(), [5], exclude="edge")
    small = links(4, 2)
    device_sampler = DeviceSampler.measured(sampler, [(small, DrawKey(1))], DEVICE)
    assert small.links is not None
    of_all_ranks = replace(small.links.by_type[BUYS], batch_edges=pairs(9, 0))
    seeds = replace(small, links=replace(small.links, by_type={BUYS: of_all_ranks}))
    assert_same(device_sampler.sample(seeds, DrawKey(1)), sampler.sample(seeds, DrawKey(1)))
    assert device_sampler.overflows == 1


@pytest.mark.long
def test_a_batch_without_edges_to_exclude_follows_one_with() -> None:
    sampler = LinkSampler(shop(), [5], exclude="edge")
    check(sampler, [links(6, 2), Seeds({"user": torch.arange(4)}, {"user": torch.arange(4)}), links(6, 3)])


@pytest.mark.long
def test_a_batch_of_links_is_made_without_a_read() -> None:
    sampler = LinkSampler(shop(), [5, 3], negatives=UniformNegatives(2), exclude="edge+reverse")
    seeds, key = links(8, 2), DrawKey(1)
    planted = sampler.planted(seeds)
    batch = DeviceBatch(BatchPlan(sampler.neighbors, measured_capacities(sampler, [(seeds, key)]), DEVICE))
    with counting() as reads:
        batch.write(planted.seeds, key, planted.excluded)
        batch.launch()
    assert reads == {}
    with counting() as reads:
        sample = exact_sample(batch, counts_of(batch.cells.values), planted.seeds)
    assert reads.total() == 1, reads
    assert_same(replace(sample, links=planted.links), sampler.sample(seeds, key))
