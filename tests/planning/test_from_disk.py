"""One machine reads what its memory does not hold."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from khop.planning.constants import MEASURED
from khop.planning.from_disk import FromDisk, from_disk
from khop.planning.prediction import predict
from khop.planning.workload import Cluster, GraphSize, Run

PAPERS = GraphSize(111_059_956, 1_615_685_872, 256)
RUN = Run((15, 10, 5), 3 * 1024)
THREE = Cluster(machines=3, cores=2, network_gbit=10, latency_s=1e-4, cache_share=0.2)


def of(gigabytes: float, graph: GraphSize = PAPERS, reads_per_s: float = 80e3) -> FromDisk:
    constants = replace(MEASURED, disk_reads_per_s=reads_per_s)
    found = from_disk(graph, RUN, THREE, constants, gigabytes * 1e9)
    assert found is not None
    return found


def test_a_cold_batch_takes_a_read_for_each_page_with_rows() -> None:
    found = of(24)
    assert found.nodes == pytest.approx(
        predict(PAPERS, replace(RUN, batch_size=1024), replace(THREE, machines=1), MEASURED)[0].traffic.nodes
    )
    assert 0.95 * found.nodes / 80e3 < found.cold < found.nodes / 80e3
    assert 0 < found.read_rows < found.nodes
    assert 0.95 * found.read_rows / 80e3 < found.reading < found.read_rows / 80e3
    assert found.step >= found.reading


def test_pages_are_those_that_random_rows_touch() -> None:
    small = GraphSize(1_000_000, 10_000_000, 256)  # 16 rows on a page
    found = of(1e6, small)
    rows = torch.randperm(small.nodes, generator=torch.Generator().manual_seed(1))[: round(found.nodes)]
    assert found.cold * 80e3 == pytest.approx((rows // 16).unique().numel(), rel=0.01)


def test_more_memory_and_a_faster_disk_are_never_worse() -> None:
    assert of(20).read_rows > of(30).read_rows > of(40).read_rows
    assert of(24, reads_per_s=40e3).step > of(24).step >= of(24, reads_per_s=1e9).step
    assert of(200).read_rows == 0


def test_rows_of_many_pages_take_the_time_of_their_bytes() -> None:
    wide = of(1e6, replace(PAPERS, feature_bytes=1 << 20))  # batches alone take terabytes
    assert wide.cold > wide.nodes * (1 << 20) / MEASURED.disk_bytes_per_s
    assert of(24, replace(PAPERS, feature_bytes=0)).read_rows == 0


def test_memory_without_room_for_the_edges_is_too_small() -> None:
    assert from_disk(PAPERS, RUN, THREE, MEASURED, 5e9) is None
