"""Lanes keep the promises of a batch source; tests/processes has several ranks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from khop.distributed.lane_source import LaneSource
from khop.exchange.lanes import Lanes
from khop.loading.ordered_map import InFlight
from khop.runtime.group import ALONE
from khop.testing.batch_source import (
    PROMISES,
    THREADED_PROMISES,
    Make,
    local,
    requests,
)


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
