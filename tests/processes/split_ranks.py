"""What ranks do with the links of a graph whose parts they hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch

import khop
from khop.distributed.exchange.lanes import Lanes
from khop.distributed.partitioned_graph import PartitionedGraph
from khop.distributed.processes.group import Group
from khop.draw import DegreeNegatives, DrawKey, DrawnNegatives, Positives, Purpose, UniformNegatives
from khop.graph.features.table import FeatureTable
from khop.graph.folder import open_folder
from khop.graph.partitions.local_partitions import LocalPartitionFeatures, LocalPartitionGraph
from khop.graph.partitions.parts_folder import open_parts
from khop.graph.rule import Rule
from khop.graph.store import CscGraph, open_csc_graph
from khop.sampling.links.link_seeds import LinkList
from khop.sampling.links.link_split import Shares, WholeEdges, split_edges
from khop.sampling.rules.temporal import Temporal
from khop.sampling.rules.uniform import Uniform
from khop.schema import EdgeType
from support.parts_as_whole import OldIds, assert_same
from support.small_typed_folders import BOUGHT, BUYS, LIKE

OverRanks = Callable[[Path, Group, Lanes], PartitionedGraph]
SEED = 3


@dataclass(frozen=True)
class SplitCase:
    """How links are dealt, and how a batch of them is drawn."""

    name: str
    edge_types: tuple[EdgeType, ...]
    settings: Mapping[str, Any]
    negatives: DrawnNegatives
    rule: Rule = Uniform()


SPLITS = (
    SplitCase(
        "both types",
        (BUYS, LIKE),
        {"val": 0.2, "disjoint_share": 0.3, "label": None},
        UniformNegatives(2, exact=True),
    ),
    SplitCase("without a reverse", (LIKE,), {"val": 7, "negatives": 5}, DegreeNegatives(2, exact=True)),
    SplitCase(
        "in time",
        (BUYS,),
        {"label": "weight", "time": "time", "negatives": 2},
        DegreeNegatives(3),
        Temporal("time"),
    ),
)


def splits(group: Group, home: Path, methods: Sequence[str], over_ranks: OverRanks) -> list[str]:
    """Links dealt by ranks, and a batch of them, against one process on the whole."""
    lanes, stored, checked = Lanes(group), open_folder(home / "whole"), []
    topology = open_csc_graph(stored)
    whole = khop.Graph(topology, FeatureTable.of(stored.schema, stored.columns()), stored)
    for method, case in product(methods, SPLITS):
        folder = open_parts(home / method)
        ids, alone = (
            OldIds(stored, folder),
            khop.Graph(LocalPartitionGraph(folder), LocalPartitionFeatures(folder), folder),
        )
        edges = over_ranks(home / method, group, lanes)
        graph = khop.Graph(edges, FeatureTable({}), lanes=lanes)
        wanted, found, beside = (
            khop.split_links(g.only([LIKE, BUYS, BOUGHT]), case.edge_types, seed=SEED, **case.settings)
            for g in (whole, graph, alone)
        )
        for name in ("train_links", "val_links", "test_links"):
            assert_same_links(ids, getattr(found, name), getattr(wanted, name))
        kept = kept_by_training(topology, case)
        edges = {t: kept[t][of_type] if t in kept else of_type for t, of_type in ids.edges.items()}
        loaders = [loader_of(split, case) for split in (wanted, found, beside)]
        samples = [loader.whole_batch(1, 2).sample for loader in loaders[:2]]
        mapped = cast(OldIds, SimpleNamespace(nodes=ids.nodes, edges=edges))
        assert_same(mapped, samples[1], samples[0])
        of_ranks, of_one = (loader.state_dict()["fingerprint"] for loader in loaders[1:])
        assert of_ranks == of_one
        checked.append(f"{method} {case.name}")
    return checked


def kept_by_training(graph: CscGraph, case: SplitCase) -> dict[EdgeType, torch.Tensor]:
    """Where edges of the whole graph stand in what training hears, if they do."""
    share = Shares(case.settings.get("val", 0.1), 0.1, case.settings.get("disjoint_share", 0.0))
    split = split_edges(WholeEdges(graph), case.edge_types, share, DrawKey.of(SEED, Purpose.SPLIT))
    found = {}
    for edge_type, (positions,) in split.train.kept.items():
        found[edge_type] = torch.full((graph.csc(edge_type).num_edges,), -1)
        found[edge_type][positions] = torch.arange(positions.numel())
    return found


def loader_of(split: khop.LinkSplit, case: SplitCase) -> khop.Loader:
    """Shuffled batches that leave their links out of their messages."""
    sampler = khop.LinkSampler(
        split.train, [4, 3], negatives=case.negatives, exclude="edge", rule=case.rule, edge_ids=True
    )
    return khop.Loader(sampler, split.train_links, 90, shuffle=True, seed=4)


def assert_same_links(ids: OldIds, found: LinkList, wanted: LinkList) -> None:
    """A list of links is, by old ids, that of the whole graph, whoever holds it."""
    assert dict(found.counts) == dict(wanted.counts)
    assert found.facts == wanted.facts
    for edge_type, count in wanted.counts.items():
        numbers = torch.arange(count).flip(0)
        ours, theirs = found.rows(edge_type, numbers), wanted.rows(edge_type, numbers)
        for end, mine, its in zip((edge_type[0], edge_type[2]), ours.edges, theirs.edges, strict=True):
            assert torch.equal(ids.nodes[end][mine], its)
        for fact in ("labels", "times"):
            if fact in wanted.facts:
                assert torch.equal(getattr(ours, fact), getattr(theirs, fact))
        if theirs.negatives is not None:
            assert ours.negatives is not None
            assert torch.equal(ids.nodes[edge_type[2]][ours.negatives], theirs.negatives)


def unprepared(group: Group, path: Path, over_ranks: OverRanks) -> str:
    """What a lane says that is the first to draw what ranks have to tell one another of."""
    lanes = Lanes(group)
    graph, links = over_ranks(path, group, lanes), Positives(torch.tensor([1]), torch.tensor([0]))

    def drawn(step: int) -> torch.Tensor:
        return graph.sample_negatives(LIKE, UniformNegatives(exact=True), links, DrawKey(step))

    try:
        list(lanes.map(drawn, range(2), 2, lambda step: (0, step)))
    except ValueError as error:
        return str(error)
    return "nothing"
