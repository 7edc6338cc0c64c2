"""An exchange of rows on devices, of one rank with itself; tests/processes has several ranks.

Rows of a rank are copied to where they are requested, or the error says how much room is missing.

A choice of columns is divided between devices and the CPU, and joined in its order.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

import khop
from khop.distributed.exchange.lanes import Lanes
from khop.distributed.exchange.peers import Peers
from khop.distributed.exchange.row_wire import FixedWire, RowGroup, Wire
from khop.distributed.owners import PartitionOwners, RankOwners
from khop.distributed.partitioned_features import PartitionedFeatures
from khop.distributed.placement import rank_features
from khop.distributed.processes.group import ALONE, Group
from khop.distributed.rank_rows import (
    ANSWERING,
    ASKING,
    Asked,
    RankRows,
    RowPart,
    RowSwap,
    SwapStatus,
    joined_columns,
    message_counts,
    placed_rank_rows,
    row_parts,
    without,
)
from khop.graph.features.store import Rows
from khop.graph.partitions.parts_folder import open_parts
from khop.kernels.gather import GatheredColumn, gather_columns
from khop.loading.columns import ColumnChoice
from khop.loading.device.device_memory import MachineRanks
from khop.loading.device.device_placement import DevicePlacement, StorePlace
from khop.loading.device.memory_plan import FreeMemory, WorkSizes
from khop.schema import ColumnSpec
from support.host_as_device import HostAsDevice
from support.machine_threads import Threads

X = torch.arange(40.0).view(10, 4).sin()
SPECS = {"n": {"x": ColumnSpec("float32", (4,)), "y": ColumnSpec("int64", ())}}
COLUMNS = {"x": X, "y": torch.arange(10)}


def rows_of(wire: Wire = Wire.STORED) -> RankRows:
    pieces = {"n": {name: (column,) for name, column in COLUMNS.items()}}
    owners = RankOwners(PartitionOwners(1), Lanes(ALONE, 1))
    features = PartitionedFeatures(pieces, SPECS, {"n": (0, 10)}, owners, wire=wire)
    return RankRows({"n": COLUMNS}, features, torch.device("cpu"))


@pytest.mark.parametrize("wire", Wire)
@pytest.mark.parametrize("ids", [[], [3, 3, 9, 0]])
def test_rows_are_rounded_as_if_they_were_sent(wire: Wire, ids: list[int]) -> None:
    rows, wanted = rows_of(wire), torch.tensor(ids, dtype=torch.int64)
    form = FixedWire((RowGroup("n", ("x", "y"), 2, rows.id_dtype("n")),), SPECS, wire, 1)
    peers = rows.features.owners.lanes.peers
    marks = peers.mark(ASKING, 1, 2), peers.mark(ANSWERING, 1, 2)
    found = RowSwap(rows, form).issue(peers, marks, [Asked(wanted)])
    expected = rows.features.gather({"n": Rows(wanted, ("x", "y"))})["n"]
    assert all(torch.equal(found.rows[0][name], expected[name]) for name in COLUMNS)
    assert SwapStatus.of(peers, marks, found.status) == SwapStatus(overflowed=False, requested=(0,))


def test_few_programs_read_rows_in_memory_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bool] = []

    def gathered(columns: list[GatheredColumn], ids: Tensor) -> list[Tensor]:
        read.extend(column.is_pinned for column in columns)
        return gather_columns(columns, ids)

    monkeypatch.setattr("khop.distributed.rank_rows.gather_columns", gathered)
    rows = replace(rows_of(), pinned=frozenset({"x"}))
    for name in COLUMNS:
        rows.stored("n", name, torch.tensor([1]))
    assert read == [True, False]


def test_a_status_is_checked_before_it_is_used() -> None:
    peers = rows_of().features.owners.lanes.peers
    marks = peers.mark(ASKING, 1, 2), peers.mark(ANSWERING, 1, 2)
    good = torch.tensor([[*marks[0], 0, 4, *marks[1], 0, *marks[0], 0, 3]])
    assert SwapStatus.of(peers, marks, good) == SwapStatus(overflowed=False, requested=(3,))
    flag = good.clone()
    flag[0, 3] = 1
    assert SwapStatus.of(peers, marks, flag).overflowed
    for place, problem in (
        (1, "asking for rows on devices: a message of"),
        (5, "a message of a different kind"),
    ):
        other = good.clone()
        other[0, place] += 1
        with pytest.raises(ValueError, match=f"rank 0 sent another message .*{problem}"):
            SwapStatus.of(peers, marks, other)
    outside = good.clone()
    outside[0, 8] = 2
    with pytest.raises(ValueError, match="an id of a row that this rank does not store"):
        SwapStatus.of(peers, marks, outside)


def features_of(parts: Path, rank: int = 1) -> PartitionedFeatures:
    """Columns of one of three ranks; nothing is exchanged here."""
    lanes = Lanes(Group(), 1)
    return rank_features(open_parts(parts, [rank]), {}, Group(rank, 3), lanes, Wire.STORED)


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
    assert stores.line.endswith("as requested; exchanges between GPUs are untested")


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


@dataclass
class OfOneHost(HostAsDevice):
    """A device whose pinned memory is that of all ranks of a machine."""

    ranks: list[HostAsDevice] = field(default_factory=list)

    def free(self) -> FreeMemory:
        pinned = sum(of_rank.taken[StorePlace.PINNED] for of_rank in self.ranks)
        return replace(self.said, host_bytes=self.said.host_bytes - pinned)


def test_ranks_that_cannot_share_edges_divide_the_memory_that_columns_have_left(typed_parts: Path) -> None:
    request = DevicePlacement.of("cuda", columns="pinned")
    edges = khop.open_graph(typed_parts).in_one_piece("a test")
    of_both = [features_of(typed_parts, rank) for rank in range(2)]
    first, second = (placed_rank_rows(of, request, HostAsDevice(), WorkSizes(), edges)[1] for of in of_both)
    topology = first.plan.sizes.topology
    rows = sum(stores.plan.pinned_bytes for stores in (first, second))
    assert first.plan.topology is StorePlace.DEVICE

    def places(copies: float) -> list[StorePlace]:
        """The places of the edges if the host has memory for some copies of them, and the cards for none."""
        said = FreeMemory((1 << 29) + topology - 1, (1 << 30) + rows + int(copies * topology))
        ranks: list[HostAsDevice] = []
        ranks += [OfOneHost(said=said, ranks=ranks, is_reached=False) for _ in range(2)]

        def place(machine: MachineRanks) -> StorePlace:
            made = (of_both[machine.rank], request, ranks[machine.rank], WorkSizes(), edges, machine)
            _, stores = placed_rank_rows(*made)
            assert (stores.edges is None) == (stores.plan.topology is StorePlace.HOST)
            return stores.plan.topology

        with patch("khop.loading.device.placed_stores.shared_pins", lambda *_: None):
            return Threads(2).run(place)  # type: ignore[return-value]

    assert places(2.1) == [StorePlace.PINNED] * 2
    assert places(1.9) == [StorePlace.HOST] * 2


BUYS = ("user", "buys", "item")
CHOICE = ColumnChoice(
    {"user": ("x", "z"), "item": ("x",)}, {BUYS: ("amount",)}, {"user": ("z", "age"), "item": ("x",)}
)
ON_DEVICE = ColumnChoice({"user": ("x", "z")}, {}, {"user": ("z", "age")})


def test_columns_of_seeds_are_asked_for_unless_nodes_have_them() -> None:
    assert list(row_parts(ON_DEVICE)) == [
        RowPart("user", ("x", "z"), of_seeds=False),
        RowPart("user", ("age",), of_seeds=True),
    ]


def test_the_cpu_gathers_the_other_columns() -> None:
    assert without(CHOICE, ON_DEVICE) == ColumnChoice({"item": ("x",)}, {BUYS: ("amount",)}, {"item": ("x",)})
    assert without(CHOICE, ColumnChoice()) == CHOICE


def test_columns_are_joined_in_the_order_of_the_choice() -> None:
    one, two = torch.zeros(1), torch.ones(1)
    joined = joined_columns(CHOICE.of_nodes, {"item": {"x": one}, "user": {"z": two}}, {"user": {"x": one}})
    assert [(t, list(of_type)) for t, of_type in joined.items()] == [("user", ["x", "z"]), ("item", ["x"])]
    assert joined["user"]["z"] is two


def test_bytes_to_this_rank_itself_are_not_counted() -> None:
    specs = {"n": {"x": ColumnSpec("float32", (2,))}}
    form = FixedWire((RowGroup("n", ("x",), 10, torch.int32),), specs, Wire.STORED, 3)
    counts = message_counts(form, Peers(Group(0, 3)), 0.5)
    assert counts["collectives"] == 2
    assert counts["id_bytes_sent"] == counts["id_bytes_received"] == 2 * (8 * 5 + 40)
    assert counts["row_bytes_sent"] == counts["row_bytes_received"] == 2 * (8 * 3 + 80)
    assert message_counts(form, Peers(Group()), 0.5)["collectives"] == 0
