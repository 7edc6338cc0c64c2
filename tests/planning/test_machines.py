"""The fewest machines are enough, and one fewer is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from khop.planning.constants import MEASURED
from khop.planning.machines import fewest_machines
from khop.planning.prediction import Placement, predict
from khop.planning.workload import Cluster, GraphSize, Run

HUGE = GraphSize(1_000_000_000, 100_000_000_000, 512)
EACH = 1024
SIXTEEN = Cluster(machines=16, cores=32, network_gbit=25, latency_s=1e-4, cache_share=0.2)
RUN = Run((15, 10, 5), 16 * EACH)


def memory(machines: int) -> float:
    """What each machine needs where edges are shared out."""
    run = replace(RUN, batch_size=EACH * machines)
    _, partitioned = predict(HUGE, run, replace(SIXTEEN, machines=machines), MEASURED)
    return partitioned.memory.total


@pytest.mark.parametrize("gigabytes", [64, 256, 4000])
def test_they_are_enough_and_one_fewer_is_not(gigabytes: int) -> None:
    found = fewest_machines(HUGE, RUN, SIXTEEN, MEASURED, gigabytes * 1e9)[Placement.PARTITIONED]
    assert found is not None
    assert memory(found) <= gigabytes * 1e9
    assert found == 1 or memory(found - 1) > gigabytes * 1e9


def test_no_number_is_enough_where_each_has_all_edges() -> None:
    found = fewest_machines(HUGE, RUN, SIXTEEN, MEASURED, 256e9)
    assert found[Placement.REPLICATED] is None


def test_memory_that_is_none_is_named() -> None:
    with pytest.raises(ValueError, match="memory 0 GB: must be a number above 0"):
        fewest_machines(HUGE, RUN, SIXTEEN, MEASURED, 0)
