"""The source of a loader's batches follows the places of the graph's stores."""

from __future__ import annotations

import pytest
import torch

import khop
from khop.loading.device.device_source import DeviceSource
from khop.loading.local_source import LocalSource
from support.recorded_runs import as_device, placed
from support.small_graphs import one_type

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the CPU has no kernels beside a GPU")


@pytest.mark.core(1)
@pytest.mark.parametrize(
    ("topology", "kind"), [("device", DeviceSource), ("pinned", DeviceSource), ("host", LocalSource)]
)
def test_kernels_draw_where_they_read_the_edges(topology: str, kind: type) -> None:
    with as_device():
        loader = khop.Loader(khop.NeighborSampler(placed(one_type(), topology), [2]), torch.arange(5), 2)
    assert isinstance(loader._batches.source, kind)
