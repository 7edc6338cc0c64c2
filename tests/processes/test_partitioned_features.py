"""Rows that ranks hold in parts come as if one process held them all, and little more than they is sent."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

import khop
from khop.testing.feature_store import PROMISES
from processes.feature_ranks import NODES, RANKS_AND_PARTS, X, features
from support.gate import WAIT_S


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.long)])
def told(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """Results of each of two or four ranks."""
    out = tmp_path_factory.mktemp("features")
    khop.launch(features, procs=request.param, arguments=(str(out),), device="cpu", deadline=WAIT_S)
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(request.param)]


def test_it_keeps_what_every_feature_store_promises(told: list[dict[str, Any]]) -> None:
    for count, parts in RANKS_AND_PARTS[len(told)]:
        for of_rank in told[:count]:
            assert of_rank[f"{count} ranks, {parts} parts"] == [promise.__name__ for promise in PROMISES]


def test_rows_on_the_disks_of_ranks_keep_the_same_promises(told: list[dict[str, Any]]) -> None:
    for of_rank in told[:2]:
        assert of_rank["on disk"] == [promise.__name__ for promise in PROMISES]


def test_a_cache_keeps_rows_of_the_own_disk_too(told: list[dict[str, Any]]) -> None:
    for of_rank in told[:2]:
        assert of_rank["kept of all"] == {"own": NODES // 4, "others": NODES // 4}


def test_a_gather_is_three_collectives(told: list[dict[str, Any]]) -> None:
    assert [of_rank["bytes"]["collectives"] for of_rank in told] == [3] * len(told)


def test_the_wire_carries_little_more_than_every_remote_row_once(told: list[dict[str, Any]]) -> None:
    for of_rank in (of_rank["bytes"] for of_rank in told):
        needed = of_rank["distinct remote rows"] * 400
        assert needed <= of_rank["requested_bytes"] <= needed + 20 * 8
        assert of_rank["row_bytes_received"] + of_rank["id_bytes_sent"] <= 1.02 * needed
        assert of_rank["needed_rows"] == 3050
        assert of_rank["requested_rows"] < of_rank["remote_rows"]  # what is wanted twice travels once


def test_rows_that_are_kept_are_not_asked_for(told: list[dict[str, Any]]) -> None:
    for of_rank in (of_rank["kept"] for of_rank in told):
        assert 0.3 < of_rank["host_cache_rows"] / of_rank["remote_rows"] < 0.7
        assert of_rank["requested_rows"] <= of_rank["remote_rows"] - of_rank["host_cache_rows"]


@pytest.mark.parametrize(("wire", "error"), [("float16", 5e-4), ("int8", 4e-3)])
def test_rounded_rows_are_the_same_wherever_they_lie(
    told: list[dict[str, Any]], wire: str, error: float
) -> None:
    """Half of the rows are each rank's own: they are rounded too."""
    rows = [torch.tensor(of_rank["rounded"][wire]) for of_rank in told[:2]]
    assert torch.equal(*rows)
    exact = X[torch.arange(0, NODES, 997), :3]
    assert not torch.equal(rows[0], exact)
    assert torch.allclose(rows[0], exact, atol=error)
