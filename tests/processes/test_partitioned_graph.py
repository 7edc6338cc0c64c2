"""A graph whose parts ranks hold is drawn from as if one process held all of it, in few collectives."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

import khop
from khop.api.partition import partition_graph
from processes.graph_ranks import (
    KEPT,
    METHODS,
    NEGATIVES,
    RANKS_AND_PARTS,
    RULES,
    WALKS,
    graphs,
    methods_of,
)
from processes.split_ranks import SPLITS
from support.gate import WAIT_S
from support.small_typed_folders import BOUGHT, BUYS, write_typed_graph


@pytest.fixture(scope="module", params=[(2,), pytest.param((1, 3), marks=pytest.mark.long)], ids=str)
def counts(request: pytest.FixtureRequest) -> tuple[int, ...]:
    """Numbers of ranks, of which each has a graph."""
    numbers: tuple[int, ...] = request.param
    return numbers


@pytest.fixture(scope="module")
def told(counts: tuple[int, ...], tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Results of each rank."""
    home = tmp_path_factory.mktemp("graphs")
    whole = write_typed_graph(home / "whole", renumbered=True)
    for parts, method in zip((4, 3), METHODS, strict=True):
        partition_graph(whole, home / method, parts, method=method)
    every = torch.cartesian_prod(torch.arange(4), torch.arange(3)).T
    edges = {BUYS: khop.EdgeTable(*every), BOUGHT: khop.EdgeTable(*every.flip(0), reverse_of=BUYS)}
    connected = khop.write_graph(
        home / "connected", {"user": khop.NodeTable(4), "item": khop.NodeTable(3)}, edges
    )
    partition_graph(connected, home / "all", 2, method="range")
    procs = max(counts)
    khop.launch(graphs, procs=procs, arguments=(str(home), counts), device="cpu", deadline=WAIT_S)
    return [json.loads((home / f"{rank}.json").read_text()) for rank in range(procs)]


def test_it_keeps_what_every_graph_store_promises(
    told: list[dict[str, Any]], counts: tuple[int, ...]
) -> None:
    for count in RANKS_AND_PARTS.keys() & set(counts):
        for of_rank in told[:count]:
            parts = RANKS_AND_PARTS[count]
            assert of_rank[f"{count} ranks, {parts} parts"] == [promise.__name__ for promise in KEPT[count]]


def test_every_ranks_batches_are_those_of_one_process_on_the_graph_before(
    told: list[dict[str, Any]], counts: tuple[int, ...]
) -> None:
    for count in counts:
        for of_rank in told[:count]:
            compared = of_rank[f"{count} ranks"]
            assert len(compared) == len(RULES) * len(methods_of(counts)) ** 2
            assert min(compared.values()) > 10


def test_a_hop_is_three_collectives_and_four_where_all_neighbors_are_wanted(
    told: list[dict[str, Any]],
) -> None:
    for of_rank in told[:2]:
        counts = of_rank["collectives"]
        assert (counts["bounded"], counts["one for all neighbors"]) == (9, 10)


def test_exact_negatives_are_three_collectives_and_others_none(told: list[dict[str, Any]]) -> None:
    for of_rank in told[:2]:
        counts = of_rank["collectives"]
        assert (counts["exact negatives"], counts["others"]) == (3, 0)


def test_links_and_their_negatives_are_those_of_one_process_on_the_graph_before(
    told: list[dict[str, Any]], counts: tuple[int, ...]
) -> None:
    for count in counts:
        for rank, of_rank in enumerate(told[:count]):
            compared = of_rank[f"links of {count} ranks"]
            assert len(compared) == len(methods_of(counts)) * len(NEGATIVES)
            assert rank == 0 or min(compared.values()) > 10


def test_walks_and_neighbors_by_walks_are_those_of_one_process_on_the_graph_before(
    told: list[dict[str, Any]], counts: tuple[int, ...]
) -> None:
    for count in counts:
        for rank, of_rank in enumerate(told[:count]):
            compared = of_rank[f"walks of {count} ranks"]
            assert len(compared) == len(methods_of(counts)) * len(WALKS) * 2
            assert rank == 0 or min(compared.values()) > 10


def test_links_are_split_as_by_one_process_on_the_whole_graph(
    told: list[dict[str, Any]], counts: tuple[int, ...]
) -> None:
    """And bring the same along, in batches too; of a type with its reverse, of one without, and in time."""
    names = [f"{method} {case.name}" for method in methods_of(counts) for case in SPLITS]
    for count in counts:
        assert [of_rank[f"splits of {count} ranks"] for of_rank in told[:count]] == [names] * count


def test_a_lane_does_not_exchange_the_links_of_ranks(
    told: list[dict[str, Any]],
) -> None:
    for of_rank in told[:2]:
        assert "before batches are made. A khop.Loader with a" in of_rank["unprepared"]


def test_a_source_without_candidates_is_an_error_on_the_rank_that_asked(told: list[dict[str, Any]]) -> None:
    for of_rank in told[:2]:
        assert "'user' node 0 is connected to every 'item' node" in of_rank["nothing to draw"]


def test_ranks_that_do_not_draw_the_same_hop_find_out(told: list[dict[str, Any]]) -> None:
    for rank, other in ((0, 1), (1, 0)):
        sentence = told[rank]["another hop"]
        assert f"rank {other} sent another message" in sentence
        assert "for another hop, or for another key" in sentence
