"""Batches of servers have the bits of the local loader, for every kind of batch, order, rank and epoch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import khop
import khop._core as _core
from khop.api.open_graph import Graph
from khop.api.serve import ServedGraph, graph_on
from khop.api.split_links import split_links_by_column, split_links_by_time, time_cut_offs
from khop.kernels.memory import pooled
from khop.loading.local_source import LocalSource
from khop.sampling.sampler import SamplerBase
from khop.sampling.seeds import ListedNodes, SeedOrder
from khop.servers.errors import InvalidRequest
from khop.servers.graph import (
    RemoteFeatures,
    RemoteSource,
    RemoteView,
    read_description,
    remote_graph,
    source_of,
)
from khop.servers.registry import BUILTIN
from khop.servers.service import Service
from khop.servers.views import KeptViews
from khop.testing import batch_source as suite
from khop.testing.batch_source import PROMISES, Make
from support.batch_kinds import PLAIN, TYPED, loaders_of_split
from support.dated_shop import BUYS as DATED_BUYS
from support.dated_shop import CUT_OFFS, DATED, Loaders
from support.delaying_streams import DelayingStreams
from support.in_process import InProcess, connected, exchange_with
from support.same_samples import assert_same, assert_same_batches
from support.small_folders import write_learnable_graph
from support.small_typed_folders import BUYS, write_typed_graph
from support.typed_shop import tensors

Kind = Callable[[khop.Graph], khop.Loader]


def check_equal(graph: khop.Graph, kind: Kind) -> None:
    local, remote = kind(graph), kind(connected(graph, servers=2))
    assert len(remote) == len(local)
    for epoch in range(2):
        for found, expected in zip(remote.epoch(epoch), local.epoch(epoch), strict=True):
            assert_same_batches(found, expected)
    assert_same_batches(remote.batch(1, 1), local.batch(1, 1))
    assert remote.state_dict() == local.state_dict()  # one mode continues what the other began


@pytest.mark.core(1)
@pytest.mark.parametrize("kind", PLAIN, ids=lambda kind: kind.__name__)
def test_plain_batches_equal_local_ones(plain_graph: khop.Graph, kind: Kind) -> None:
    check_equal(plain_graph, kind)


@pytest.mark.core(1)
@pytest.mark.parametrize("kind", TYPED, ids=lambda kind: kind.__name__)
def test_typed_batches_equal_local_ones(typed_graph: khop.Graph, kind: Kind) -> None:
    check_equal(typed_graph, kind)


@pytest.mark.core(2)
@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("kind", DATED, ids=lambda kind: kind.__name__)
def test_splits_by_time_and_by_column_equal_local_ones(
    dated_graph: khop.Graph, kind: Loaders, servers: int
) -> None:
    remote = connected(dated_graph, servers)
    assert time_cut_offs(remote) == CUT_OFFS
    for found, expected in zip(kind(remote), kind(dated_graph), strict=True):
        assert len(found) == len(expected) > 0
        for one, other in zip(found.epoch(1), expected.epoch(1), strict=True):
            assert_same_batches(one, other)
        assert found.state_dict() == expected.state_dict()


@pytest.mark.core(1)
@pytest.mark.parametrize("kind", [PLAIN[0], TYPED[0], TYPED[5]], ids=lambda kind: kind.__name__)
def test_ranks_share_a_step_as_local_ranks_do(
    plain_graph: khop.Graph, typed_graph: khop.Graph, kind: Kind
) -> None:
    graph = plain_graph if kind in PLAIN else typed_graph
    local, remote = kind(graph), kind(connected(graph))
    for rank in range(3):
        for loader in (local, remote):
            order: SeedOrder = replace(loader._order, rank=rank, world_size=3)
            loader._batches = replace(loader._batches, order=order)
        for found, expected in zip(remote.epoch(0), local.epoch(0), strict=True):
            assert_same_batches(found, expected)


def test_split_links_are_the_same_on_servers(typed_graph: khop.Graph) -> None:
    remote_graph = connected(typed_graph, servers=2)
    for remote, local in zip(loaders_of_split(remote_graph), loaders_of_split(typed_graph), strict=True):
        for found, expected in zip(remote, local, strict=True):
            assert_same_batches(found, expected)
        assert remote.state_dict() == local.state_dict()


@pytest.mark.core(1)
@pytest.mark.parametrize("by", ["random", "time", "column"])
def test_labels_and_relations_of_split_links_are_those_of_local_ones(
    dated_graph: khop.Graph, by: str
) -> None:
    def loaders(graph: khop.Graph) -> list[khop.Loader]:
        if by == "random":
            split = khop.split_links(graph, DATED_BUYS, 0.2, 30, negatives=3, label="split", relation="time")
        elif by == "time":
            split = split_links_by_time(graph, DATED_BUYS, CUT_OFFS, label="split", relation="time")
        else:
            split = split_links_by_column(graph, DATED_BUYS, negatives=2, label="split", relation="time")
        drawn = khop.UniformNegatives(2, mode=khop.NegativeMode.TRIPLET, exact=True)
        given = khop.GivenNegatives(mode=khop.NegativeMode.TRIPLET)
        parts = ((split.train, split.train_links, drawn), (split.val, split.val_links, given))
        return [
            khop.Loader(
                khop.LinkSampler(edges, [3], negatives=of, exclude="edge", relation="time"), links, 64
            )
            for edges, links, of in parts
        ]

    for remote, local in zip(loaders(connected(dated_graph)), loaders(dated_graph), strict=True):
        for found, expected in zip(remote, local, strict=True):
            assert found.links[DATED_BUYS].relations is not None
            assert found.links[DATED_BUYS].labels is not None
            assert_same_batches(found, expected)


@pytest.mark.parametrize("served", [connected, khop.Graph.of], ids=["on servers", "local"])
def test_a_split_on_servers_of_another_graph_is_its_ids(
    plain_graph: khop.Graph, tmp_path: Path, served: Callable[[khop.Graph], khop.Graph]
) -> None:
    """The nodes are those of the split, as for local graphs, and not those of an equal name."""
    other = khop.open_graph(write_learnable_graph(tmp_path / "other", nodes=500))

    def loader(graph: khop.Graph, seeds: khop.Graph) -> khop.Loader:
        return khop.Loader(khop.NeighborSampler(graph, [3]), seeds.split("train"), 64, columns=["x"])

    found, expected = loader(served(plain_graph), connected(other)), loader(plain_graph, other)
    for one, of_ids in zip(found.epoch(0), expected.epoch(0), strict=True):
        assert_same_batches(one, of_ids)
    assert_same_batches(found(connected(other).split("val")), expected(other.split("val")))
    assert found.state_dict() == expected.state_dict()
    same = loader(connected(plain_graph), connected(plain_graph))  # by two connections
    assert isinstance(same._order.seeds, ListedNodes)


@pytest.mark.parametrize("served", [connected, khop.Graph.of], ids=["on servers", "local"])
def test_links_on_servers_of_another_graph_are_refused(
    typed_graph: khop.Graph, tmp_path: Path, served: Callable[[khop.Graph], khop.Graph]
) -> None:
    other = khop.open_graph(write_typed_graph(tmp_path / "other", renumbered=True))
    links = khop.split_links(connected(other), BUYS, 0.2, 0.1).train_links
    sampler = khop.LinkSampler(served(typed_graph), [3], negatives=khop.UniformNegatives())
    with pytest.raises(ValueError, match=r"are on servers of another graph; give links that khop\.split"):
        khop.Loader(sampler, links, 64)


def test_links_of_a_list_come_by_number(typed_graph: khop.Graph) -> None:
    from support.small_typed_folders import BUYS

    numbers = torch.tensor([3, 0, 7])
    here, there = (
        khop.split_links(graph, BUYS, 0.2, 0.1, negatives=2).val_links
        for graph in (typed_graph, connected(typed_graph))
    )
    assert (there.counts, there.facts) == (here.counts, here.facts)
    assert_same(there.rows(BUYS, numbers), here.rows(BUYS, numbers))


def test_fewer_edge_types_are_left_out_on_servers(typed_graph: khop.Graph) -> None:
    from support.small_typed_folders import LIKE

    def loader(graph: khop.Graph) -> khop.Loader:
        return khop.Loader(khop.NeighborSampler(graph.only([LIKE]), [3]), {"item": torch.arange(40)}, 16)

    for found, expected in zip(loader(connected(typed_graph)), loader(typed_graph), strict=True):
        assert_same_batches(found, expected)


def test_settings_travel_once_for_each_server(plain_graph: khop.Graph) -> None:
    exchange = exchange_with(plain_graph)
    batches = sum(1 for _ in PLAIN[0](graph_on(exchange)).epoch(0))
    sizes = [size for stage, size in exchange.asked if stage == "batch"]
    assert len(sizes) - batches <= 4  # `prefetch` first requests may be refused at the same time
    assert exchange.services[0].counters()["batches"] == batches
    assert exchange.services[0].counters()["settings"] <= 4


def test_requests_do_not_grow_with_the_split(plain_graph: khop.Graph) -> None:
    """Seeds are named by number: a step's numbers are sent, and the list never comes."""
    exchange = exchange_with(plain_graph)
    graph = graph_on(exchange)
    next(iter(PLAIN[0](graph)))
    assert {stage for stage, _ in exchange.asked} == {"batch"}
    assert graph.split("train")["item"].numel() == plain_graph.split("train")["item"].numel()


def test_a_batch_states_its_server_and_its_bytes(plain_graph: khop.Graph) -> None:
    batches = list(PLAIN[0](connected(plain_graph, servers=2)).epoch(0))
    assert {batch.traffic["server"] for batch in batches} == {0, 1}
    assert all(batch.traffic["server_bytes"] > batch["x"].nbytes for batch in batches)
    assert all(batch.traffic["server_retries"] == 0 for batch in batches)


def with_own_columns(graph: khop.Graph) -> khop.Graph:
    """Return the graph as a client of servers has it, but for its columns, which are in this process."""
    return replace(connected(graph, servers=2), features=graph.features)


@pytest.mark.core(1)
@pytest.mark.parametrize("kind", [PLAIN[0], TYPED[0]], ids=lambda kind: kind.__name__)
def test_columns_of_this_process_are_gathered_for_batches_of_servers(
    plain_graph: khop.Graph, typed_graph: khop.Graph, kind: Kind
) -> None:
    graph = plain_graph if kind in PLAIN else typed_graph
    here, there = kind(with_own_columns(graph)), kind(connected(graph, servers=2))
    for found, expected, sent in zip(here.epoch(0), kind(graph).epoch(0), there.epoch(0), strict=True):
        assert_same_batches(found, expected)
        assert found.traffic["server_bytes"] < sent.traffic["server_bytes"]


@pytest.mark.parametrize("served", [connected, with_own_columns], ids=["served", "own columns"])
def test_batches_of_servers_reach_a_device_by_its_streams_from_the_pinned_pool(
    typed_graph: khop.Graph, monkeypatch: pytest.MonkeyPatch, served: Callable[[khop.Graph], khop.Graph]
) -> None:
    """Kernels read the values of a batch however late they run; its memory is not used for another one."""
    streams, pinned = DelayingStreams(), set[bool]()

    def noted(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        pinned.add(before := _core.use_pinned_pool(True))
        _core.use_pinned_pool(before)
        return pooled(shape, dtype)

    expected = [tensors(batch) for batch in TYPED[0](typed_graph).epoch(0)]
    graph = served(typed_graph)
    monkeypatch.setattr("khop.api.loader.streams_of", lambda _: streams)
    monkeypatch.setattr("khop.servers.codec.pooled", noted)
    loader, found = TYPED[0](graph), []
    for batch in loader.epoch(0):
        found.append([streams.read(tensor) for tensor in tensors(batch)])
        assert batch.traffic["server_bytes"] > 0
        del batch
    assert streams.queues[1].work
    assert not any(queue.done for queue in streams.queues)
    streams.run_all()
    assert pinned == {True}
    for ours, theirs in zip(found, expected, strict=True):
        assert_same(ours, theirs)


# The contract suite of batch sources: the batches of `LocalSource`, made by a server of its sampler's graph.


class _InMemory(ServedGraph):
    """The suite's graph, which has no folder."""


def remote(local: LocalSource) -> RemoteSource:
    graph = local.sampler.graph
    assert isinstance(graph, Graph)
    registry = BUILTIN.with_module(sys.modules[suite.__name__])
    views = [KeptViews(graph, 1 << 20) for _ in range(2)]
    exchange = InProcess([Service(_InMemory(graph, "suite", "0" * 64, of), registry) for of in views])
    view = RemoteView(exchange, read_description(exchange.describe(), "server"))
    schema = view.description.schema
    features = RemoteFeatures(schema.columns, view)
    there = Graph(remote_graph(view, schema), features)
    sampler = type(local.sampler)(there, **local.sampler.settings())  # type: ignore[arg-type]
    assert isinstance(sampler, SamplerBase)
    source = source_of(replace(local, sampler=sampler, features=features))
    assert isinstance(source, RemoteSource)
    return source


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_it_keeps(promise: Callable[[Make], None]) -> None:
    promise(remote)


def test_a_graph_on_servers_refuses_single_hops_with_the_remedy(plain_graph: khop.Graph) -> None:
    graph = connected(plain_graph)
    sampler = khop.NeighborSampler(graph, [3])
    seeds = khop.Seeds({"item": torch.arange(3)}, {"item": torch.arange(3)})
    with pytest.raises(ValueError, match=r"servers \(server-0\), which make batches; give the sampler to"):
        sampler.sample(seeds, khop.DrawKey(1))
    with pytest.raises(ValueError, match="or open the graph's folder"):
        graph.in_one_piece("khop plan")


@pytest.mark.parametrize("seeds", ["listed", "fetched"])
def test_a_sampler_of_groups_is_refused_with_the_remedy(plain_graph: khop.Graph, seeds: str) -> None:
    remote = connected(plain_graph)
    given = remote.split("train")["item"]
    assert isinstance(given, ListedNodes)
    sampler = khop.ShadowSampler(remote, [3], layers=2)
    sentence = "open the graph in this process" if seeds == "listed" else "states no arguments from which"
    with pytest.raises(ValueError, match=sentence):
        khop.Loader(sampler, given if seeds == "listed" else given.fetch(), 8)


def test_negatives_of_a_table_are_refused_and_the_rows_of_links_replace_them(typed_graph: khop.Graph) -> None:
    table = torch.arange(1500).view(300, 5) % 200
    edges = torch.stack([torch.arange(40) * 7, torch.arange(40) * 5])
    remote, of_table = connected(typed_graph), khop.TableNegatives(table)
    with pytest.raises(ValueError, match="cannot be sent to a server"):
        khop.Loader(khop.LinkSampler(remote, [2], negatives=of_table), khop.Links({BUYS: edges}), 16)
    given = khop.Links({BUYS: edges}, negatives={BUYS: table[edges[0]]})
    rows = khop.Loader(khop.LinkSampler(remote, [2], negatives=khop.GivenNegatives()), given, 16, seed=3)
    local = khop.LinkSampler(typed_graph, [2], negatives=of_table)
    expected = khop.Loader(local, khop.Links({BUYS: edges}), 16, seed=3)
    for one, other in zip(rows.epoch(0), expected.epoch(0), strict=True):
        assert_same(one.sample, other.sample)


def test_a_sampler_without_settings_is_refused_with_the_remedy(plain_graph: khop.Graph) -> None:
    class Own(khop.SamplerBase):
        def sample(self, seeds: khop.Seeds, key: khop.DrawKey) -> khop.Sample:
            raise AssertionError

    with pytest.raises(ValueError, match=r"states no arguments .* `khop serve --module`"):
        khop.Loader(Own(connected(plain_graph)), torch.arange(4), 2)


def test_a_sampler_that_is_not_registered_is_refused_with_the_remedy(plain_graph: khop.Graph) -> None:
    loader = khop.Loader(suite.FailsAt(connected(plain_graph), key=1), torch.arange(4), 2)
    with pytest.raises(InvalidRequest, match=r"FailsAt: is not registered .* `khop serve --module`"):
        next(iter(loader))


def test_errors_of_a_server_have_the_text_of_local_ones(typed_graph: khop.Graph) -> None:
    def first(graph: khop.Graph) -> str:
        sampler = khop.NeighborSampler(graph, [3], rule=khop.Temporal("time"))
        with pytest.raises(ValueError, match="have no times") as caught:
            next(iter(khop.Loader(sampler, {"user": torch.arange(4)}, 2)))
        return str(caught.value)

    assert first(connected(typed_graph)) == first(typed_graph)


def test_a_graph_on_servers_says_where_it_is(plain_graph: khop.Graph) -> None:
    text = repr(connected(plain_graph))
    assert text.startswith("khop.Graph on servers server-0\n")
    assert text.splitlines()[1:] == repr(plain_graph).splitlines()[1:]


def test_columns_come_by_request_too(typed_graph: khop.Graph) -> None:
    from khop.graph.features.store import Rows

    wanted = {"user": Rows(torch.tensor([5, 3, 5]), ("x", "age"), {"age": 2}, frozenset({"x"}))}
    assert_same(connected(typed_graph).features.gather(wanted), typed_graph.features.gather(wanted))
