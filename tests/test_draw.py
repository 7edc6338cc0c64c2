"""Rules are values that refuse what they could not keep."""

from __future__ import annotations

import pytest

from khop import Keep, Temporal, Uniform, Weighted
from khop.draw import check_rule
from khop.schema import ColumnSpec, Schema

BUYS, LIKES = ("user", "buys", "item"), ("item", "likes", "item")
SCHEMA = Schema(
    ("user", "item"),
    (BUYS, LIKES),
    columns={
        "user": {"born": ColumnSpec("int64", ())},
        "item": {"x": ColumnSpec("float32", (8,)), "y": ColumnSpec("int64", ())},
        BUYS: {
            "price": ColumnSpec("float32", ()),
            "at": ColumnSpec("int32", ()),
            "why": ColumnSpec("uint8", (3,)),
        },
    },
)


def test_the_latest_edges_are_not_drawn() -> None:
    with pytest.raises(ValueError, match=r"keep=LATEST with Weighted.*leave inner out"):
        Temporal("at", Keep.LATEST, inner=Weighted("price"))
    assert Temporal("at", keep="latest") == Temporal("at", Keep.LATEST)


@pytest.mark.parametrize(
    ("window", "message"),
    [
        ((5, 1), "after 1 would show the future"),
        ((2, -3), "before must be 3 or more"),
        ((-1, 0), "no time lies"),
    ],
)
def test_a_window_is_in_the_past_and_not_empty(window: tuple[int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Temporal("at", window=window)


@pytest.mark.parametrize(
    "rule",
    [
        Uniform(True),
        Weighted("price"),
        Weighted("at"),
        Temporal("at", window=(3, -3)),
        Temporal("born", inner=Weighted("price", replacement=True)),
    ],
    ids=str,
)
def test_a_rule_that_the_graph_has_columns_for_passes(rule: Uniform | Weighted | Temporal) -> None:
    check_rule(rule, SCHEMA)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (Weighted("cost"), r"no column 'cost'; there are .*'buys'.*\['at', 'price', 'why'\]"),
        (Weighted("born"), "no column 'born'"),
        (Weighted("why"), r"'why' of .*'buys'.* is uint8 of shape \(3,\): one number per row"),
        (Temporal("when"), r"no column 'when'; there are .*'user': \['born'\]"),
        (Temporal("price"), "'price' of .* is float32 of shape .*: one integer per row"),
        (Temporal("at", inner=Weighted("cost")), "no column 'cost'"),
    ],
    ids=str,
)
def test_a_column_that_is_not_there_or_does_not_do_is_named(rule: Weighted | Temporal, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_rule(rule, SCHEMA)
