"""Ranks that exchange rows between devices have the rows, and the batches, of an exchange over the host.

Devices are the memory of the host, and gloo stands for NCCL.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import khop
from processes.device_row_ranks import PARTS, draws, draws_of_parts, exchanges, few_draws, loaders
from support.small_typed_folders import write_typed_graph
from support.started_ranks import StartedRanks

COUNTED = ("needed_rows", "remote_rows", "requested_rows", "requested_bytes")


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.long)])
def procs(request: pytest.FixtureRequest) -> int:
    """A number of ranks."""
    number: int = request.param
    return number


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, ranks: StartedRanks, procs: int) -> list[dict[str, Any]]:
    """Exchanges of each rank."""
    out = tmp_path_factory.mktemp("exchanges")
    ranks.launch(exchanges, procs, (str(out),))
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(procs)]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory, ranks: StartedRanks, procs: int) -> list[dict[str, Any]]:
    """Batches of each rank."""
    out = tmp_path_factory.mktemp("loaders")
    khop.partition_graph(write_typed_graph(out / "whole"), out / "parts", parts=4)
    ranks.launch(loaders, procs, (str(out / "parts"), str(out)))
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(procs)]


def test_rows_are_those_of_the_exchange_over_the_host(told: list[dict[str, Any]]) -> None:
    for of_rank in told:
        assert [of_rank[f"{parts} parts"] for parts in PARTS[len(told)]] == [[], []]
    assert told[0]["1 rank"] == []


def test_no_host_reads_anything_before_the_rows_are_there(told: list[dict[str, Any]]) -> None:
    assert [of_rank["reads"] for of_rank in told] == [{}] * len(told)


def test_an_overflow_of_one_rank_is_seen_by_all_and_no_other_turn(told: list[dict[str, Any]]) -> None:
    assert [of_rank["overflow"] for of_rank in told] == [[False, True, False]] * len(told)


def test_an_unexpected_message_names_its_sender(told: list[dict[str, Any]]) -> None:
    step, unknown = told[0]["errors"]
    sender = "rank 1 sent another message than rank 0 expected, asking for rows on devices"
    assert step.startswith(f"{sender}: a message of epoch 0, step 7")
    assert unknown.startswith(f"{sender}: an id of a row that this rank does not store")


@pytest.mark.long
def test_batches_are_those_over_the_host_wherever_rows_are(loaded: list[dict[str, Any]]) -> None:
    for of_rank in loaded:
        for name, found in of_rank.items():
            assert name == "order" or found.get("wrong", []) == [], name
    placement = loaded[0]["features {'x': 'pinned', 'age': 'host'}"]["placement"]
    assert placement.startswith("rows of this rank on cuda: topology host, columns ")
    assert "x pinned" in placement
    assert "age host" in placement
    assert placement.endswith("as requested; exchanges between GPUs are untested")


@pytest.mark.long
def test_exchanges_and_gradients_have_one_order_on_all_ranks(loaded: list[dict[str, Any]]) -> None:
    orders = [of_rank["order"] for of_rank in loaded]
    assert orders == [orders[0]] * len(loaded)
    steps = orders[0].count("averaging gradients")
    assert steps > 3
    assert (
        orders[0].count("asking for rows on devices") == orders[0].count("getting rows on devices") == steps
    )


@pytest.mark.long
def test_traffic_counts_the_rows_of_messages_of_exact_sizes(loaded: list[dict[str, Any]]) -> None:
    for of_rank in loaded:
        found = of_rank["features device"]
        assert found["repeats"] == 0  # all batches were measured
        for counted, host in zip(found["traffic"], found["host"], strict=True):
            assert {name: counted[name] for name in COUNTED} == {name: host[name] for name in COUNTED}
            assert (counted["collectives"], host["collectives"]) == (2, 3)
        cached = found["cached"]
        assert sum(counted["device_cache_rows"] for counted in cached) > 0
        before, after = (
            sum(counted["requested_rows"] for counted in of) for of in (found["traffic"], cached)
        )
        assert after < before


@pytest.mark.long
def test_all_ranks_repeat_an_exchange_that_is_too_large_on_one(loaded: list[dict[str, Any]]) -> None:
    repeats = {of_rank["repeats"]["repeats"] for of_rank in loaded}
    assert len(repeats) == 1
    steps = loaded[0]["repeats"]["steps"]
    assert 0 < repeats.pop() <= steps
    repeated = [
        [counted["repeated_exchanges"] for counted in of_rank["repeats"]["traffic"]] for of_rank in loaded
    ]
    assert repeated == [repeated[0]] * len(loaded)


@pytest.mark.long
def test_a_run_places_the_rows_of_its_columns(loaded: list[dict[str, Any]]) -> None:
    for of_rank in loaded:
        assert of_rank["run"]["columns"] == {"user": ["age", "x"]}
        assert of_rank["link run"]["columns"] == {"user": ["x"]}
        for run in (of_rank["run"], of_rank["link run"]):
            assert "topology device, columns" in run["placement"]
            assert "x device" in run["placement"]


def drawn_by(procs: int, out: Path, ranks: StartedRanks) -> list[dict[str, Any]]:
    """Batches of each rank that kernels draw."""
    khop.partition_graph(write_typed_graph(out / "whole"), out / "parts", parts=4)
    ranks.launch(draws, procs, (str(out / "parts"), str(out)))
    found = [json.loads((out / f"{rank}.json").read_text()) for rank in range(procs)]
    for of_rank in found:
        for name, of_name in of_rank.items():
            assert of_name["wrong"] == [], name
        assert "topology device" in of_rank["features auto"]["placement"]
    return found


def sources(of_rank: dict[str, Any]) -> dict[str, str]:
    """The sources of the batches of a rank, by placement and topology."""
    return {name: found["made"] for name, found in of_rank.items() if "made" in found}


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.long)])
def drawn(
    tmp_path_factory: pytest.TempPathFactory, ranks: StartedRanks, request: pytest.FixtureRequest
) -> list[dict[str, Any]]:
    """Batches that kernels draw on several ranks."""
    return drawn_by(request.param, tmp_path_factory.mktemp("draws"), ranks)


@pytest.mark.long
def test_kernels_draw_the_batches_of_one_rank(tmp_path: Path, ranks: StartedRanks) -> None:
    (found,) = drawn_by(1, tmp_path, ranks)
    assert sources(found) == dict.fromkeys(
        ("features device", "features auto", "whole pinned"), "DeviceSource"
    )


@pytest.mark.long
def test_kernels_draw_where_each_rank_has_the_whole_topology(drawn: list[dict[str, Any]]) -> None:
    over_ranks = dict.fromkeys(("features device", "features auto"), "DeviceLaneSource, DeviceSource")
    assert [sources(of_rank) for of_rank in drawn] == [over_ranks | {"whole pinned": "DeviceSource"}] * len(
        drawn
    )


def assert_counted(found: dict[str, Any]) -> None:
    for counted, host in zip(found["traffic"], found["host"], strict=True):
        assert (counted["collectives"], counted["repeated_exchanges"]) == (2, 0)
        assert {name: counted[name] for name in COUNTED} == {name: host[name] for name in COUNTED}


@pytest.mark.long
def test_drawn_batches_count_what_they_exchange(drawn: list[dict[str, Any]]) -> None:
    for of_rank in drawn:
        assert_counted(of_rank["features device"])
    (repeats,) = {of_rank["repeats"]["repeats"] for of_rank in drawn}
    assert repeats > 0


@pytest.mark.long
def test_the_cpu_draws_for_columns_that_it_gathers(drawn: list[dict[str, Any]]) -> None:
    for others in (of_rank["others"] for of_rank in drawn):
        assert others["mixed"] == "DeviceLaneSource, NoneType"
        assert len(others["said"]) == 1
        assert others["said"][0].endswith("the CPU gathers the columns ['age'] of each batch")


def told_by(
    function: Callable[[int, torch.device, str, str], None], out: Path, ranks: StartedRanks
) -> list[dict[str, Any]]:
    """What two ranks say of a graph in two parts."""
    khop.partition_graph(write_typed_graph(out / "whole"), out / "parts", parts=2)
    ranks.launch(function, 2, (str(out / "parts"), str(out)))
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory, ranks: StartedRanks) -> list[dict[str, Any]]:
    """A few batches of two ranks."""
    return told_by(few_draws, tmp_path_factory.mktemp("few"), ranks)


@pytest.fixture(scope="module")
def of_parts(tmp_path_factory: pytest.TempPathFactory, ranks: StartedRanks) -> list[dict[str, Any]]:
    """Batches of parts of the edges on two ranks, and their plans for unequal cards."""
    return told_by(draws_of_parts, tmp_path_factory.mktemp("of-parts"), ranks)


@pytest.mark.long
def test_batches_of_the_cpu_with_columns_of_edges_are_not_compared(few: list[dict[str, Any]]) -> None:
    for found in (of_rank["columns of edges"] for of_rank in few):
        assert (found["wrong"], found["edges"], found["source"]) == ([], True, "DeviceLaneSource, NoneType")
        assert len(found["said"]) == 1
        assert found["said"][0].endswith("the CPU gathers the columns ['weight'] of each batch")
        assert found["where"] == ["device_row_ranks.py"]


@pytest.mark.long
def test_kernels_draw_batches_of_two_ranks(few: list[dict[str, Any]]) -> None:
    for found in (of_rank["drawn"] for of_rank in few):
        assert (found["wrong"], found["made"]) == ([], "DeviceLaneSource, DeviceSource")
        assert found["placement"].startswith("rows of this rank on cuda: topology device, columns ")
        assert_counted(found)


def test_ranks_without_a_request_have_one_plan_that_fits_on_all_cards(
    of_parts: list[dict[str, Any]],
) -> None:
    """Rank 0 has no memory, then a card with room for the model alone, then no kernels."""
    first, second = (of_rank["unequal"] for of_rank in of_parts)
    by_cpu = "cuda: the CPU samples and gathers: "
    full = f"{by_cpu}the columns of a rank do not fit on its card, or in memory that it may pin"
    assert [first[0], second[0]] == [full, full]
    assert [("x pinned" in said, "age pinned" in said) for said in (first[1], second[1])] == [
        (True, True)
    ] * 2
    assert (first[2], second[2]) == (f"{by_cpu}no compiler", f"{by_cpu}those of another rank cannot")


def test_kernels_draw_from_training_edges_and_from_edges_before_a_time(
    of_parts: list[dict[str, Any]],
) -> None:
    drawn, by_cpu = "DeviceLaneSource, DeviceSource", "DeviceLaneSource, NoneType"
    for found in (of_rank["parts"] for of_rank in of_parts):
        assert found["wrong"] == []
        assert found["made"] == {"links": drawn, "times": drawn, "columns of edges": by_cpu}
