"""A source whose ranks have rows on devices keeps the promises of a source; tests/processes has ranks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

from khop.distributed.device_lane_source import DeviceLaneSource
from khop.distributed.exchange.lanes import Lanes
from khop.distributed.exchange.peers import Peers
from khop.distributed.owners import PartitionOwners, RankOwners
from khop.distributed.partitioned_features import PartitionedFeatures
from khop.distributed.placement import LaneSource
from khop.distributed.processes.group import ALONE
from khop.distributed.rank_rows import Asked, RankRows, RowSwap, Swapped, split_by_rows
from khop.kernels.choice import Engine, forcing
from khop.loading.local_source import LocalSource
from khop.loading.ordered_map import InFlight
from khop.loading.source import StepRequests
from khop.testing.batch_source import GRAPH, ORDER, PROMISES, Make, local, requests, values
from support.delaying_streams import Point, PromptStreams
from support.host_reads import counting

CPU = torch.device("cpu")
Marks = tuple[list[int], list[int]]
PLACED = [{"user": ("x", "age"), "item": ("x", "price")}, {"user": ("x",), "item": ("price",)}]


def device_lane_source(host: LocalSource, placed: dict[str, tuple[str, ...]] = PLACED[0]) -> DeviceLaneSource:
    """A source of the same batches, with the placed columns on a device that is the host."""
    columns = {t: dict(of_type) for t, of_type in GRAPH.columns.items()}
    pieces = {t: {name: (column,) for name, column in of_type.items()} for t, of_type in columns.items()}
    offsets = {t: (0, next(iter(of_type.values())).shape[0]) for t, of_type in columns.items()}
    specs = {t: GRAPH.schema.columns[t] for t in columns}
    lanes = Lanes(ALONE, 2)
    features = PartitionedFeatures(pieces, specs, offsets, RankOwners(PartitionOwners(1), lanes))
    rows = RankRows({t: {n: columns[t][n] for n in names} for t, names in placed.items()}, features, CPU)
    over_ranks = LaneSource(replace(host, features=features), lanes)
    first = [(request.seeds(), request.key) for request in StepRequests(ORDER, 1, range(4))]
    choice = split_by_rows(host.columns, rows)
    return DeviceLaneSource(over_ranks, choice, rows, PromptStreams(), lambda: first)


@pytest.mark.core(3)
@pytest.mark.parametrize(
    "placed", [pytest.param(PLACED[0], marks=pytest.mark.long), PLACED[1]], ids=["all", "some"]
)
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_it_keeps(promise: Callable[[Make], None], placed: dict[str, tuple[str, ...]]) -> None:
    with forcing(Engine.TORCH):
        promise(lambda host: device_lane_source(host, placed))


def test_lanes_draw_the_batches_and_the_thread_that_takes_them_exchanges_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = device_lane_source(local())
    issued: list[tuple[str, list[int]]] = []
    issue = RowSwap.issue

    def noted(self: RowSwap, peers: Peers, marks: Marks, asked: Sequence[Asked]) -> Swapped:
        issued.append((threading.current_thread().name, marks[0]))
        return issue(self, peers, marks, asked)

    monkeypatch.setattr(RowSwap, "issue", noted)
    with forcing(Engine.TORCH):
        source.prepare()
        found = list(source.stream(requests(), InFlight(threads=1, prefetch=4)))
    assert {drawn.spans[0].thread for drawn in found} == {"khop-lane-0", "khop-lane-1"}
    assert {thread for thread, _ in issued} == {threading.current_thread().name}
    places = [mark for _, mark in issued]
    assert places == sorted(places)
    assert len(places) == len(found)


def test_a_batch_waits_for_its_status_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read from the first copy to the device until the status is on the host."""
    source = device_lane_source(local())
    exchanged: list[dict[str, int]] = []
    with_columns = DeviceLaneSource._with_columns
    waits: list[Point] = []
    monkeypatch.setattr(Point, "synchronize", lambda point: waits.append(point))

    def noted(self: DeviceLaneSource, *given: object) -> object:
        with counting() as reads:
            found = with_columns(self, *given)  # type: ignore[arg-type]
        exchanged.append(dict(reads))
        return found

    monkeypatch.setattr(DeviceLaneSource, "_with_columns", noted)
    with forcing(Engine.TORCH):
        source.prepare()
        some = requests()[:3]
        expected = [values(local().draw(request)) for request in some]
        assert [values(drawn) for drawn in source.stream(some, InFlight(1, 4))] == expected
    assert exchanged == [{}] * 3
    assert not waits
