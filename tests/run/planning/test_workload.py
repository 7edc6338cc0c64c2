"""What a plan is asked for is checked, and named where it cannot be."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from khop.run.planning.workload import Cluster, GraphSize, PlannedRun

BAD: dict[str, Callable[[], object]] = {
    "nodes 0: must be 1 or more": lambda: GraphSize(0, 5, 4),
    "edges -1: must be 0 or more": lambda: GraphSize(1, -1, 4),
    "feature bytes -4: must be 0 or more": lambda: GraphSize(1, 1, -4),
    r"fanouts \[\]: give a number for each hop": lambda: PlannedRun((), 1),
    r"fanouts \[5, 0\]: give a number": lambda: PlannedRun((5, 0), 1),
    "batch size 0: must be 1": lambda: PlannedRun((5,), 0),
    "hidden 0: must be 1": lambda: PlannedRun((5,), 1, hidden=0),
    "outputs -2: must be 1": lambda: PlannedRun((5,), 1, outputs=-2),
    r"remote share 1\.5: must be from 0 to 1": lambda: PlannedRun((5,), 1, remote_share=1.5),
    "machines 0: must be 1": lambda: Cluster(0, 1, 1, 0, 0),
    "cores 0: must be 1": lambda: Cluster(1, 0, 1, 0, 0),
    "network 0: must be above 0 Gbit/s": lambda: Cluster(1, 1, 0, 0, 0),
    "network nan: must be above 0": lambda: Cluster(1, 1, float("nan"), 0, 0),
    "latency -1 ms: must be 0": lambda: Cluster(1, 1, 1, -0.001, 0),
    r"cache -0\.5: must be 0 or more of the rows": lambda: Cluster(1, 1, 1, 0, -0.5),
}


@pytest.mark.parametrize("sentence", BAD)
def test_what_cannot_be_is_named(sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        BAD[sentence]()


def test_ids_take_four_bytes_as_long_as_they_fit() -> None:
    assert [GraphSize(nodes, 1, 1).id_bytes for nodes in (1, 2**31 - 1, 2**31)] == [4, 4, 8]
