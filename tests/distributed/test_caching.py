"""Caches of remote rows change no batch, and rows of this rank need none."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from khop.distributed.caching import CacheBudgets, CacheBy, with_caches
from khop.distributed.partition_owners import PartitionOwners
from khop.distributed.partitioned_features import PartitionedFeatures
from khop.exchange.lanes import Lanes
from khop.exchange.peers import Peers
from khop.loading.columns import ColumnChoice
from khop.loading.local_source import LocalSource
from khop.loading.source import StepRequests
from khop.partition.local_partition_features import LocalPartitionFeatures
from khop.partition.local_partition_graph import LocalPartitionGraph
from khop.partition.parts_folder import open_parts
from khop.rules.weighted import Weighted
from khop.runtime.group import ALONE
from khop.sampling.neighbor import NeighborSampler
from khop.sampling.seeds import NodeSeeds, SeedOrder
from khop.testing.batch_source import values
from support.small_typed_folders import BUYS

ORDER = SeedOrder(NodeSeeds({"item": torch.arange(40)}), batch_size=8, shuffle=True, run_seed=1)
BUDGETS = CacheBudgets(host_cache_bytes=4000, device_cache_bytes=2000)
CPU = torch.device("cpu")


def sources(parts: Path) -> tuple[LocalSource, LocalSource, LocalPartitionGraph]:
    """A source of rows in this process, and one of the same rows over ranks: half of them are others'."""
    folder = open_parts(parts)
    graph, features = LocalPartitionGraph(folder), LocalPartitionFeatures(folder)
    sampler = NeighborSampler(graph, [{BUYS: 3, "*": 0}])
    choice = ColumnChoice({"user": ("x",)}, {}, {})
    schema = folder.schema
    types = [*schema.node_types, *schema.edge_types]
    offsets = {t: folder.book.offsets[t] if isinstance(t, str) else folder.book.first_edges(t) for t in types}
    specs = {t: schema.columns.get(t, {}) for t in types}
    ranks = PartitionedFeatures(
        features.pieces, specs, offsets, PartitionOwners(folder.book.num_parts, 0, 1), Lanes(ALONE, 1)
    )
    return LocalSource(sampler, features, choice, CPU), LocalSource(sampler, ranks, choice, CPU), graph


def test_a_source_without_remote_rows_stays_as_it_is(typed_parts: Path) -> None:
    own, _, graph = sources(typed_parts)
    assert with_caches(own, ORDER, graph, BUDGETS, CacheBy.AUTO) is own
    without = replace(own, features=None)
    assert with_caches(without, ORDER, graph, BUDGETS, CacheBy.AUTO) is without


@pytest.mark.parametrize("by", CacheBy)
def test_caches_change_no_batch_and_hold_no_row_of_this_rank(typed_parts: Path, by: CacheBy) -> None:
    own, over_ranks, graph = sources(typed_parts)
    cached = with_caches(over_ranks, ORDER, graph, BUDGETS, by)
    assert cached.on_device.num_bytes <= BUDGETS.device_cache_bytes
    assert isinstance(cached.features, PartitionedFeatures)
    assert cached.features.kept.num_bytes <= BUDGETS.host_cache_bytes
    for request in list(StepRequests(ORDER, 0, range(2))):
        assert values(cached.draw(request)) == values(own.draw(request))


def test_visits_need_draws_whose_probabilities_are_known(typed_parts: Path) -> None:
    _, over_ranks, graph = sources(typed_parts)
    sampler = NeighborSampler(graph, [{BUYS: 3, "*": 0}], rule=Weighted("weight"))
    weighted = replace(over_ranks, sampler=sampler)
    with pytest.raises(ValueError, match=r"cache by visits: requires .* use counts"):
        with_caches(weighted, ORDER, graph, BUDGETS, CacheBy.VISITS)
    with_caches(weighted, ORDER, graph, BUDGETS, CacheBy.AUTO)


class Guarded(defaultdict[str, float]):
    """Counts that change only while this thread holds the turn of their peers."""

    def __init__(self, peers: Peers) -> None:
        super().__init__(float)
        self.peers = peers

    def __setitem__(self, name: str, count: float) -> None:
        assert self.peers.turn._is_owned(), f"{name} changes outside the turn"
        super().__setitem__(name, count)


def test_threads_that_take_turns_lose_no_count(typed_parts: Path) -> None:
    _, over_ranks, _ = sources(typed_parts)
    features = over_ranks.features
    assert isinstance(features, PartitionedFeatures)
    peers = features.lanes.peers
    peers.counts = Guarded(peers)
    over_ranks.draw(next(iter(StepRequests(ORDER, 0, range(2)))))
    assert peers.counts["needed_rows"] > 0
