"""A rank opens what it needs of a folder of parts, and says what is missing before it meets others.

Caches of remote rows change no batch, and rows of this rank need none.

Lanes keep the promises of a batch source; tests/processes has several ranks.

The ranks of a machine: the first one says where memory is, and all compare their numbers.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

import khop
from khop.api.partition import partition_graph
from khop.distributed.exchange.lanes import Lanes
from khop.distributed.exchange.peers import Peers
from khop.distributed.owners import PartitionOwners, RankOwners
from khop.distributed.partitioned_features import PartitionedFeatures
from khop.distributed.placement import (
    CacheBudgets,
    CacheBy,
    LaneSource,
    PartitionOptions,
    machine_ranks,
    stores_of,
    with_caches,
)
from khop.distributed.processes.group import ALONE, Group, shared_counter, this_group
from khop.graph.partitions.local_partitions import LocalPartitionFeatures, LocalPartitionGraph
from khop.graph.partitions.parts_folder import known_folder, open_parts
from khop.graph.partitions.placements import Placement
from khop.loading.columns import ColumnChoice
from khop.loading.local_source import LocalSource
from khop.loading.ordered_map import InFlight
from khop.loading.source import StepRequests
from khop.sampling.rules.weighted import Weighted
from khop.sampling.sampler import NeighborSampler
from khop.sampling.seeds import NodeSeeds, SeedOrder
from khop.testing.batch_source import PROMISES, THREADED_PROMISES, Make, local, requests, values
from support.covered import covered
from support.host_as_device import HostAsDevice
from support.machine_folders import of_machine
from support.small_typed_folders import BUYS, write_typed_graph
from support.started_ranks import StartedRanks

RANK_1 = Group(rank=1, world_size=2)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    parts = tmp_path / "parts"
    partition_graph(write_typed_graph(tmp_path / "whole"), parts, 2, method="random")
    return parts


@pytest.mark.core(2)
@pytest.mark.parametrize(
    ("placement", "file", "needs"),
    [
        (Placement.FEATURES, "part-0001/nodes/user/x.npy", "edges of parts 0 to 1 and the columns of part 1"),
        (Placement.FEATURES, "part-0000/edges/user__buys__item/indices.npy", "edges of parts 0 to 1"),
        (Placement.FEATURES, "part-0000/edges/user__buys__item/columns/weight.npy", "edges of parts 0 to 1"),
        (
            Placement.ALL,
            "part-0001/edges/item__like__item/indptr.npy",
            "edges of part 1 and the columns of part 1",
        ),
        (Placement.ALL, "nodes/user/original_id.npy", "edges of part 1 and the columns of part 1"),
    ],
)
def test_a_file_that_is_missing_is_named_with_the_rank_that_needs_it(
    shop: Path, placement: Placement, file: str, needs: str
) -> None:
    folder = of_machine(shop, placement, 1, 2)
    (folder / file).unlink()
    with pytest.raises(ValueError, match=r"is missing; .* rank 1 of 2 needs the ") as raised:
        stores_of(folder, RANK_1, PartitionOptions(placement))
    assert str(raised.value).startswith(str(folder / file))
    assert needs in str(raised.value)
    assert f"placement {placement}" in str(raised.value)


def test_a_part_that_is_missing_is_named_with_the_rank_that_needs_it(shop: Path) -> None:
    folder = of_machine(shop, Placement.ALL, 0, 2)
    assert not (folder / "part-0001").exists()
    with pytest.raises(ValueError, match=r"part 1 of 2 is not on this machine.* rank 1 of 2 needs the edges"):
        stores_of(folder, RANK_1, PartitionOptions(Placement.ALL))


@pytest.mark.core(1)
@pytest.mark.parametrize("placement", [Placement.FEATURES, Placement.ALL])
def test_what_is_known_of_a_graph_is_known_on_every_machine(shop: Path, placement: Placement) -> None:
    folder, everything = known_folder(of_machine(shop, placement, 1, 2)), open_parts(shop)
    assert folder.schema == everything.schema
    assert folder.fingerprint == everything.fingerprint
    for name in everything.split_names:
        assert folder.split(name).keys() == everything.split(name).keys()
    assert folder.columns()["user"]["age"].tolist() == everything.columns()["user"]["age"].tolist()


def test_missing_files_are_named_to_a_process_that_needs_all(shop: Path) -> None:
    folder = of_machine(shop, Placement.FEATURES, 0, 2)
    with pytest.raises(ValueError, match=r"part-0001/.*npy: is missing"):
        stores_of(folder, Group(), PartitionOptions())
    edges = open_parts(folder, columns_of=range(1))
    with pytest.raises(
        ValueError, match=r"'x' of 'user': .*part-0001/nodes/user/x.npy is not on this machine"
    ):
        edges.columns()["user"]["x"]


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
        features.pieces,
        specs,
        offsets,
        RankOwners(PartitionOwners(folder.book.num_parts), Lanes(ALONE, 1)),
    )
    return LocalSource(sampler, features, choice, CPU), LocalSource(sampler, ranks, choice, CPU), graph


def test_a_source_without_remote_rows_stays_as_it_is(typed_parts: Path) -> None:
    own, _, graph = sources(typed_parts)
    assert with_caches(own, ORDER, graph, BUDGETS, CacheBy.AUTO) is own
    without = replace(own, features=None)
    assert with_caches(without, ORDER, graph, BUDGETS, CacheBy.AUTO) is without


@pytest.mark.core(1)
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
    peers = features.owners.lanes.peers
    peers.counts = Guarded(peers)
    over_ranks.draw(next(iter(StepRequests(ORDER, 0, range(2)))))
    assert peers.counts["needed_rows"] > 0


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_it_keeps(promise: Callable[[Make], None], count: int) -> None:
    promise(lambda source: LaneSource(source, Lanes(ALONE, count)))


@pytest.mark.parametrize("promise", THREADED_PROMISES, ids=lambda promise: promise.__name__)
def test_lanes_work_at_the_same_time(promise: Callable[[Make], None]) -> None:
    promise(lambda source: LaneSource(source, Lanes(ALONE, 2)))


def test_a_batch_counts_what_its_lane_exchanged() -> None:
    for drawn in LaneSource(local(), Lanes(ALONE, 2)).stream(requests(), InFlight()):
        assert drawn.traffic == {"needed_rows": 0, "remote_rows": 0, "device_cache_rows": 0}


def test_lane_i_makes_every_lth_request_beginning_with_the_ith() -> None:
    source = LaneSource(local(), Lanes(ALONE, 3))
    threads = [drawn.spans[0].thread for drawn in source.stream(requests(), InFlight(prefetch=20))]
    assert threads == [f"khop-lane-{step % 3}" for step in range(len(threads))]


def test_a_single_rank_is_the_first_and_agrees_with_itself() -> None:
    machine = machine_ranks(ALONE)
    assert machine.is_first
    assert machine.first_says("here") == "here"
    assert machine.all_say(3)


@covered
def _compare(rank: int, device: str) -> None:
    group = this_group()
    machine = machine_ranks(group)
    assert machine.is_first == (rank == 0)
    assert machine.first_says(f"path {rank}") == "path 0"
    assert machine.all_say(5)
    assert not machine.all_say(rank)
    # As if each rank were on a machine of its own: values of others do not count.
    apart = machine_ranks(replace(group, local_rank=0, local_world_size=1))
    assert apart.is_first
    for _ in range(3 * rank):  # the ranks of one machine may call more often, after a failed allocation
        assert apart.first_says(f"path {rank}") == f"path {rank}"
    assert apart.first_says("") == ""
    assert apart.all_say(rank)


@covered
def _take_turns(rank: int, device: str, paths: tuple[Path, Path], out: Path) -> None:
    """Numbers of a counter after placements, as if ranks 0 and 1 were on one machine, and 2 on another."""
    group = replace(this_group(), local_rank=rank % 2, local_world_size=2 - rank // 2)
    with (
        patch("khop.api.open_graph.this_group", lambda: group),
        patch("khop.api.open_graph.memory_of", lambda device: HostAsDevice()),
        patch("khop.api.open_graph.why_no_batches", lambda device: None),
    ):
        for path in paths:
            khop.open_graph(path).on("cuda", columns="device")
    turn_of = shared_counter(group)
    (out / f"{rank}.json").write_text(json.dumps([turn_of() for _ in range(3)]))
    group.barrier()


def test_machines_may_have_different_numbers_of_ranks(tmp_path: Path, ranks: StartedRanks) -> None:
    whole, parts = write_typed_graph(tmp_path / "whole"), tmp_path / "parts"
    partition_graph(whole, parts, 3)
    ranks.launch(_take_turns, 3, ((whole, parts), tmp_path))
    turns = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    assert sorted(turn for of_rank in turns for turn in of_rank) == list(range(9))


def test_ranks_ask_the_first_of_their_machine(ranks: StartedRanks) -> None:
    ranks.launch(_compare, 2, ())
