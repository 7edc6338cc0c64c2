"""Ranks that hold parts of a graph take the course of one process on the graph that was cut."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import khop
from processes.conftest import STEPS
from processes.worker_ranks import BATCH_SIZE, own_loop, worker
from support.commands import WAIT_S, records, train, train_here
from support.small_folders import write_learnable_graph
from support.small_typed_folders import write_tiny_graph

FOLDERS = {"ldg-2": ("ldg", 2), "random-5": ("random", 5)}


@pytest.fixture(
    scope="module", params=[2, pytest.param(3, marks=pytest.mark.long)], ids=["two ranks", "three ranks"]
)
def procs(request: pytest.FixtureRequest) -> int:
    """A number of ranks; three are more than the parts of one folder, and fewer than those of another."""
    number: int = request.param
    return number


@pytest.fixture(scope="module")
def names(procs: int) -> list[str]:
    """Folders of a graph that is cut in one way for two ranks, and in two for three."""
    return [*FOLDERS][: procs - 1]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, procs: int, names: list[str]) -> Path:
    """Results of the ranks."""
    path: Path = tmp_path_factory.mktemp("worker")
    for name, columns in (("tiny", True), ("bare", False)):
        khop.partition_graph(write_tiny_graph(path / name, columns=columns), path / f"{name}-5", 5)
    whole = write_learnable_graph(path / "whole", nodes=700)
    for name in names:
        method, parts = FOLDERS[name]
        khop.partition_graph(whole, path / name, parts, method=method)
    folders = [str(path / name) for name in names]
    given = khop.open_graph(folders[0], placement="all", lanes=3)
    khop.launch(worker, procs=procs, arguments=(folders, str(path), given), device="cpu", deadline=WAIT_S)
    return path


@pytest.fixture(scope="module")
def courses(home: Path, procs: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Of one process on the whole graph, and of each of the ranks on every folder by every placement."""
    alone = own_loop(khop.open_graph(home / "whole"))
    return alone, [json.loads((home / f"{rank}.json").read_text()) for rank in range(procs)]


@pytest.fixture(scope="module")
def beside(home: Path, procs: int) -> list[dict[str, Any]]:
    """What each of the ranks has done besides."""
    return [json.loads((home / f"{rank}-beside.json").read_text()) for rank in range(procs)]


def test_every_placement_has_the_losses_of_one_process(
    courses: tuple[dict[str, Any], list[dict[str, Any]]],
) -> None:
    """A graph that was opened before the ranks were started among them: they open it as it was."""
    alone, together = courses
    assert len(alone["losses"]) == 2 * alone["steps"]
    for of_rank in together:
        for name, course in of_rank.items():
            epochs = 2 if name.endswith((" features", " all", " whole")) else 1
            assert course["losses"] == pytest.approx(alone["losses"][: epochs * alone["steps"]], rel=1e-9)


def test_every_seed_comes_once_in_even_shares(courses: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    alone, together = courses
    for name in together[0]:
        of_steps = [*zip(*(of_rank[name]["seeds"] for of_rank in together), strict=True)]
        for shares, of_step in zip(of_steps, alone["seeds"][: len(of_steps)], strict=True):
            assert sorted(chain(*shares)) == sorted(of_step)
            assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert max(map(len, alone["seeds"])) == BATCH_SIZE


def test_a_batch_is_as_many_collectives_as_are_promised_and_little_more_than_its_remote_rows(
    courses: tuple[dict[str, Any], list[dict[str, Any]]], names: list[str]
) -> None:
    """Rows of 16 bytes here: what goes around them is counted in absolute numbers."""
    _, together = courses
    around = (len(together) - 1) * (24 + 3 * 8)
    for name in names:
        for of_rank in together:
            for placement, collectives in (("features", 3), ("all", 3 + 3 * 3)):
                for counts in of_rank[f"{name} {placement}"]["traffic"]:
                    assert counts["collectives"] == collectives
                    assert counts["host_cache_rows"] == 0
                    assert counts["row_bytes_received"] <= counts["requested_bytes"] + around
            assert not any(of_rank[f"{name} whole"]["traffic"])


@pytest.mark.parametrize("kept_by", ["visits", "counts"])
def test_rows_that_are_kept_are_not_asked_for(
    courses: tuple[dict[str, Any], list[dict[str, Any]]], names: list[str], kept_by: str
) -> None:
    """100 of some 350 or 560 rows of others, and better ones than by chance."""
    _, together = courses
    for name in names:
        for of_rank in together:
            with_cache, without = (
                of_rank[f"{name} {course}"]["traffic"] for course in (f"kept by {kept_by}", "features")
            )
            for some, all_ in zip(with_cache, without[: len(with_cache)], strict=True):
                assert some["collectives"] == 3
                assert some["remote_rows"] == all_["remote_rows"]
                assert some["requested_rows"] + some["host_cache_rows"] == all_["requested_rows"]
            kept, wanted = (sum(c[count] for c in with_cache) for count in ("host_cache_rows", "remote_rows"))
            assert kept > 1.1 * 100 / 560 * wanted


def test_rows_that_are_kept_on_the_device_are_those_that_are_needed_most(
    courses: tuple[dict[str, Any], list[dict[str, Any]]],
) -> None:
    """100 there, and the 100 that are needed next on the host."""
    _, together = courses
    for of_rank in together:
        both, one, none = (
            of_rank[course]["traffic"]
            for course in ("on the device", "ldg-2 kept by visits", "ldg-2 features")
        )
        for some, all_ in zip(both, none[: len(both)], strict=True):
            assert some["remote_rows"] == all_["remote_rows"]
            assert some["needed_rows"] == all_["needed_rows"]
            assert (
                some["requested_rows"] + some["host_cache_rows"] + some["device_cache_rows"]
                == all_["requested_rows"]
            )
        on_device, kept, alone = (
            sum(counts[name] for counts in traffic)
            for traffic, name in (
                (both, "device_cache_rows"),
                (both, "host_cache_rows"),
                (one, "host_cache_rows"),
            )
        )
        assert 0.9 * alone < on_device <= alone  # seeds of others aside, whose rows are wanted on the host
        assert 0 < kept < on_device


def test_local_seeds_need_fewer_remote_rows(
    courses: tuple[dict[str, Any], list[dict[str, Any]]],
) -> None:
    """Of a graph with communities that was cut along them."""
    _, together = courses
    counts = [counts for of_rank in together for counts in of_rank["ldg-2 features"]["traffic"]]
    assert sum(c["remote_rows"] for c in counts) < 0.5 * sum(c["needed_rows"] for c in counts)


def test_where_edges_are_in_parts_too_a_cache_is_planned_by_counts(
    courses: tuple[dict[str, Any], list[dict[str, Any]]],
) -> None:
    _, together = courses
    for of_rank in together:
        kept, counted = (
            [counts["host_cache_rows"] for counts in of_rank[course]["traffic"]]
            for course in ("edges in parts", "ldg-2 kept by counts")
        )
        assert kept == counted


def test_a_rank_without_seeds_of_its_own_keeps_what_those_of_others_need(
    beside: list[dict[str, Any]],
) -> None:
    """With room for all rows that its share of batches may need, which is as large as the others'."""
    for of_rank in beside:
        traffic = of_rank["seeds of one part"]
        assert sum(counts["remote_rows"] for counts in traffic) > 0
        assert [counts["requested_rows"] for counts in traffic] == [0] * len(traffic)


def test_parts_that_own_nothing_take_part(beside: list[dict[str, Any]]) -> None:
    """More parts than nodes of a type, types without columns or without nodes, one seed for all ranks."""
    for of_rank in beside:
        *of_parts, score, output = of_rank["tiny"]
        assert output != 0
        assert of_parts == pytest.approx([score, output] * 2, rel=1e-9)


def test_a_graph_without_columns_is_shared_out_too(beside: list[dict[str, Any]]) -> None:
    for of_rank in beside:
        assert of_rank["bare"] == [1, 1, 1]  # seeds of all ranks, by each placement and of the whole


@pytest.mark.long
def test_khop_train_on_parts_has_the_losses_and_scores_of_one_process(run_toml: Path) -> None:
    """Also with rows of others kept, in memory and on the device."""
    khop.partition_graph("toy", "toy-3", 3)
    given = ("--precision", "float64", "--dropout", "0", "--epochs", "2")
    train_here(str(run_toml), "--out", "alone", *given)
    kept = ("--cache-bytes", "2kB", "--cache", "2kB")
    train(str(run_toml), "--graph", "toy-3", "--out", "parts", "--procs", "2", "--lanes", "3", *kept, *given)
    for log in ("steps", "metrics"):
        alone, parts = records("alone", log), records("parts", log)
        traffic = [line.pop("traffic") for line in parts]
        for line, beside in zip(parts, alone, strict=True):
            assert line == pytest.approx(beside, rel=1e-9)
        for counts in traffic:
            assert isinstance(counts, dict)
            steps = [3, 3] if log == "steps" else 2 * 3 * STEPS
            assert counts["collectives"] == steps
            if log == "metrics":
                assert 0 < counts["device_hit_rate"] < counts["hit_rate"] < 1
