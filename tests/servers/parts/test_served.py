"""Batches of servers of parts have the bits of the local loader over all parts, for every kind of batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import khop
from khop.api.time_split import split_links_by_time, time_cut_offs
from khop.graph.import_record import TimeCutOffs
from khop.servers.errors import InvalidRequest
from support.batch_kinds import PLAIN, TYPED
from support.dated_shop import BUYS as DATED_BUYS
from support.dated_shop import CUT_OFFS, DATED, Loaders, write_dated_shop
from support.parts_in_process import connected_to_parts, part_services
from support.same_samples import assert_same
from support.small_typed_folders import BUYS, LIKE

Kind = Callable[[khop.Graph], khop.Loader]


def assert_same_batches(found: khop.Batch, expected: khop.Batch) -> None:
    empty: dict[str, float] = {}
    assert_same(replace(found, spans=(), traffic=empty), replace(expected, spans=(), traffic=empty), "batch")


def check_equal(path: Path, kind: Kind) -> None:
    local, remote = kind(khop.open_graph(path)), kind(connected_to_parts(path))
    assert len(remote) == len(local)
    for found, expected in zip(remote.epoch(1), local.epoch(1), strict=True):
        assert_same_batches(found, expected)
    assert remote.state_dict() == local.state_dict()


@pytest.mark.parametrize("kind", PLAIN, ids=lambda kind: kind.__name__)
def test_plain_batches_equal_local_ones(plain_parts: Path, kind: Kind) -> None:
    check_equal(plain_parts, kind)


@pytest.mark.parametrize("kind", TYPED, ids=lambda kind: kind.__name__)
def test_typed_batches_equal_local_ones(typed_parts: Path, kind: Kind) -> None:
    check_equal(typed_parts, kind)


def test_split_links_are_the_same_over_parts(typed_parts: Path) -> None:
    def loaders(graph: khop.Graph) -> list[khop.Loader]:
        split = khop.split_links(graph, BUYS, 0.2, 30, negatives=3, time="time", disjoint_share=0.3, seed=4)
        sampler = khop.LinkSampler(
            split.train, [3], negatives=khop.UniformNegatives(), rule=khop.Temporal("time")
        )
        given = khop.LinkSampler(split.val, [3], negatives=khop.GivenNegatives(), rule=khop.Temporal("time"))
        return [
            khop.Loader(sampler, split.train_links, 64, shuffle=True, columns={"user": ["x"]}),
            khop.Loader(given, split.val_links, 64, columns={"user": ["x"]}),
        ]

    for remote, local in zip(
        loaders(connected_to_parts(typed_parts)), loaders(khop.open_graph(typed_parts)), strict=True
    ):
        for found, expected in zip(remote, local, strict=True):
            assert_same_batches(found, expected)
        assert remote.state_dict() == local.state_dict()


@pytest.mark.parametrize("kind", DATED, ids=lambda kind: kind.__name__)
def test_splits_by_time_and_by_column_are_the_same_over_parts(dated_parts: Path, kind: Loaders) -> None:
    remote = connected_to_parts(dated_parts)
    assert time_cut_offs(remote) == CUT_OFFS
    for found, expected in zip(kind(remote), kind(khop.open_graph(dated_parts)), strict=True):
        assert len(found) == len(expected) > 0
        for one, other in zip(found, expected, strict=True):
            assert_same_batches(one, other)
        assert found.state_dict() == expected.state_dict()


def test_negatives_by_relation_are_refused_over_parts(typed_parts: Path) -> None:
    """Exact ones need all edges of a source, which only a server of the whole graph has."""
    remote, sentence = connected_to_parts(typed_parts), r"by relation 'time': .* serve the whole graph, or"
    with pytest.raises(InvalidRequest, match=sentence):
        khop.split_links(remote, BUYS, negatives=2, relation="time")
    split = khop.split_links(remote, BUYS, negatives=0, relation="time")
    drawn = khop.LinkSampler(split.train, [3], negatives=khop.UniformNegatives(exact=True), relation="time")
    with pytest.raises(InvalidRequest, match=sentence):
        next(iter(khop.Loader(drawn, split.train_links, 64)))


@pytest.mark.parametrize("cut_offs", [TimeCutOffs(-5, 80), TimeCutOffs(60, 200)])
def test_an_empty_part_of_a_split_is_the_sentence_of_the_local_split(
    dated_parts: Path, cut_offs: TimeCutOffs
) -> None:
    said = []
    for graph in (connected_to_parts(dated_parts), khop.open_graph(dated_parts)):
        with pytest.raises(ValueError, match="change the split, or import more") as caught:
            split_links_by_time(graph, DATED_BUYS, cut_offs)
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_parts_without_the_times_of_all_nodes_are_refused(tmp_path: Path) -> None:
    """Columns of one number per node are on all machines, others with their part alone."""
    khop.partition_graph(write_dated_shop(tmp_path / "whole", time_shape=(1,)), tmp_path / "parts", 2)
    with pytest.raises(ValueError, match="is split by time, and each part has the column 'time' of its own"):
        part_services(tmp_path / "parts")


def test_negatives_by_degree_of_a_split_count_the_edges_of_all_parts(typed_parts: Path) -> None:
    """The edges that a split leaves out are in all parts, and so are the partners of a source."""

    def loader(graph: khop.Graph) -> khop.Loader:
        split = khop.split_links(graph, [BUYS, LIKE], 0.1, 0.1, label=None, seed=2)
        negatives = khop.DegreeNegatives(2, exact=True)
        sampler = khop.LinkSampler(split.train, [2], negatives=negatives, exclude="edge")
        return khop.Loader(sampler, split.train_links, 512)

    remote, local = loader(connected_to_parts(typed_parts)), loader(khop.open_graph(typed_parts))
    for found, expected in zip(remote, local, strict=True):
        assert_same_batches(found, expected)


def test_links_of_a_list_come_by_number(typed_parts: Path) -> None:
    numbers = torch.tensor([3, 0, 7, 3])
    here, there = (
        khop.split_links(graph, BUYS, 0.2, 0.1, negatives=2, label="weight").val_links
        for graph in (khop.open_graph(typed_parts), connected_to_parts(typed_parts))
    )
    assert (there.counts, there.facts) == (here.counts, here.facts)
    assert_same(there.rows(BUYS, numbers), here.rows(BUYS, numbers))


def test_fewer_edge_types_are_left_out(typed_parts: Path) -> None:
    def loader(graph: khop.Graph) -> khop.Loader:
        return khop.Loader(khop.NeighborSampler(graph.only([LIKE]), [3]), {"item": torch.arange(40)}, 16)

    remote, local = loader(connected_to_parts(typed_parts)), loader(khop.open_graph(typed_parts))
    for found, expected in zip(remote, local, strict=True):
        assert_same_batches(found, expected)
