"""A choice of columns is divided between devices and the CPU, and joined in its order."""

from __future__ import annotations

import torch

from khop.distributed.row_parts import RowPart, joined_columns, message_counts, row_parts, without
from khop.exchange.fixed_wire import FixedWire, RowGroup
from khop.exchange.peers import Peers
from khop.exchange.row_wire import Wire
from khop.loading.columns import ColumnChoice
from khop.runtime.group import Group
from khop.schema import ColumnSpec

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
