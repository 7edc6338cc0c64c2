"""Rows of a rank are copied to where they are requested, or the error says how much room is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from khop.distributed.partitioned_features import PartitionedFeatures
from khop.distributed.placed_rank_rows import placed_rank_rows
from khop.distributed.placement import rank_features
from khop.exchange.lanes import Lanes
from khop.exchange.row_wire import Wire
from khop.features.store import Rows
from khop.loading.device_placement import DevicePlacement, StorePlace
from khop.loading.memory_plan import FreeMemory, WorkSizes
from khop.partition.parts_folder import open_parts
from khop.runtime.group import Group
from support.host_as_device import HostAsDevice


def features_of(parts: Path) -> PartitionedFeatures:
    """Columns of the second of three ranks; nothing is exchanged here."""
    lanes = Lanes(Group(), 1)
    return rank_features(open_parts(parts, [1]), {}, Group(1, 3), lanes, Wire.STORED)


def placed(parts: Path, columns: dict[str, str], memory: HostAsDevice) -> object:
    request = DevicePlacement.of("cuda", columns=columns)
    return placed_rank_rows(features_of(parts), request, memory, WorkSizes())


def test_rows_are_those_of_this_rank(typed_parts: Path) -> None:
    features, memory = features_of(typed_parts), HostAsDevice()
    request = DevicePlacement.of("cuda", columns={"x": "device", "price": "pinned"})
    rows, stores = placed_rank_rows(features, request, memory, WorkSizes())
    assert list(rows.columns) == ["user", "item"]
    assert rows.pinned == {"price"}
    held = features.local_rows("user")
    assert rows.spans("user")[1] == (held.start, held.stop)
    own = features.pieces["user"]["x"]
    assert torch.equal(rows.columns["user"]["x"], torch.cat([piece[:] for piece in own]))
    assert memory.taken[StorePlace.DEVICE] == rows.columns["user"]["x"].nbytes
    assert memory.taken[StorePlace.PINNED] == rows.columns["item"]["price"].nbytes
    assert stores.plan.topology is StorePlace.HOST
    assert stores.line.endswith("this path is unproven: it has never run on GPUs")


def test_too_little_memory_is_an_error(typed_parts: Path) -> None:
    little = HostAsDevice(said=FreeMemory(1 << 29, 1 << 40))
    with pytest.raises(ValueError, match=r"column 'x' \"device\": .* give columns=\{'x': \"pinned\"\}"):
        placed(typed_parts, {"x": "device"}, little)
    refused = HostAsDevice(most={StorePlace.PINNED: 10})
    with pytest.raises(
        ValueError, match=r"could not be placed: .* could not be pinned. Give columns a small"
    ):
        placed(typed_parts, {"x": "pinned"}, refused)
    with pytest.raises(ValueError, match="no node type has a column 'z'"):
        placed(typed_parts, {"z": "pinned"}, HostAsDevice())


def test_rows_of_other_ranks_take_no_memory(typed_parts: Path) -> None:
    features = features_of(typed_parts)
    rows, _ = placed_rank_rows(features, DevicePlacement.of(columns="device"), HostAsDevice(), WorkSizes())
    wanted = Rows(torch.arange(len(features.local_rows("user"))), ("x",))
    assert rows.columns["user"]["x"].shape[0] == wanted.ids.numel() < 300
