"""An exchange of rows on devices, of one rank with itself; tests/processes has several ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from khop.distributed.partition_owners import PartitionOwners
from khop.distributed.partitioned_features import PartitionedFeatures
from khop.distributed.rank_rows import ANSWERING, ASKING, Asked, RankRows, RowSwap, Status
from khop.exchange.fixed_wire import FixedWire, RowGroup
from khop.exchange.lanes import Lanes
from khop.exchange.row_wire import Wire
from khop.features.store import Rows
from khop.kernels.gather import Column, gather_columns
from khop.runtime.group import ALONE
from khop.schema import ColumnSpec

X = torch.arange(40.0).view(10, 4).sin()
SPECS = {"n": {"x": ColumnSpec("float32", (4,)), "y": ColumnSpec("int64", ())}}
COLUMNS = {"x": X, "y": torch.arange(10)}


def rows_of(wire: Wire = Wire.STORED) -> RankRows:
    pieces = {"n": {name: (column,) for name, column in COLUMNS.items()}}
    owners = PartitionOwners(1)
    features = PartitionedFeatures(pieces, SPECS, {"n": (0, 10)}, owners, Lanes(ALONE, 1), wire=wire)
    return RankRows({"n": COLUMNS}, features, torch.device("cpu"))


@pytest.mark.parametrize("wire", Wire)
@pytest.mark.parametrize("ids", [[], [3, 3, 9, 0]])
def test_rows_are_rounded_as_if_they_were_sent(wire: Wire, ids: list[int]) -> None:
    rows, wanted = rows_of(wire), torch.tensor(ids, dtype=torch.int64)
    form = FixedWire((RowGroup("n", ("x", "y"), 2, rows.id_dtype("n")),), SPECS, wire, 1)
    peers = rows.features.lanes.peers
    marks = peers.mark(ASKING, 1, 2), peers.mark(ANSWERING, 1, 2)
    found = RowSwap(rows, form).issue(peers, marks, [Asked(wanted)])
    expected = rows.features.gather({"n": Rows(wanted, ("x", "y"))})["n"]
    assert all(torch.equal(found.rows[0][name], expected[name]) for name in COLUMNS)
    assert Status.of(peers, marks, found.status) == Status(overflowed=False, requested=(0,))


def test_few_programs_read_rows_in_memory_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bool] = []

    def gathered(columns: list[Column], ids: Tensor) -> list[Tensor]:
        read.extend(column.is_pinned for column in columns)
        return gather_columns(columns, ids)

    monkeypatch.setattr("khop.distributed.rank_rows.gather_columns", gathered)
    rows = replace(rows_of(), pinned=frozenset({"x"}))
    for name in COLUMNS:
        rows.stored("n", name, torch.tensor([1]))
    assert read == [True, False]


def test_a_status_is_checked_before_it_is_used() -> None:
    peers = rows_of().features.lanes.peers
    marks = peers.mark(ASKING, 1, 2), peers.mark(ANSWERING, 1, 2)
    good = torch.tensor([[*marks[0], 0, 4, *marks[1], 0, *marks[0], 0, 3]])
    assert Status.of(peers, marks, good) == Status(overflowed=False, requested=(3,))
    flag = good.clone()
    flag[0, 3] = 1
    assert Status.of(peers, marks, flag).overflowed
    for place, problem in ((1, "asking for rows on devices: a message of"), (5, "a message of another kind")):
        other = good.clone()
        other[0, place] += 1
        with pytest.raises(ValueError, match=f"rank 0 sent another message .*{problem}"):
            Status.of(peers, marks, other)
    outside = good.clone()
    outside[0, 8] = 2
    with pytest.raises(ValueError, match="an id of a row that this rank does not store"):
        Status.of(peers, marks, outside)
