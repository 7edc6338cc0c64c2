"""Rules are values that refuse what they could not keep."""

from __future__ import annotations

import pytest

from khop import Temporal, Uniform, Weighted
from khop.graph.rule import check_rule
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
