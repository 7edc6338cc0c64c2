"""Every edge type has one number, whichever way it is written; what fits nothing is named."""

from __future__ import annotations

import pytest

from khop.sampling.fanouts import Fanout, fanout_by_type, fanouts_by_type
from khop.schema import Schema

BUYS, SEES, HAS = ("user", "buys", "item"), ("user", "sees", "item"), ("item", "has", "tag")
SCHEMA = Schema(("user", "item", "tag"), (BUYS, SEES, HAS))


@pytest.mark.parametrize(
    ("fanout", "numbers"),
    [
        (5, (5, 5, 5)),
        (-1, (-1, -1, -1)),
        ({BUYS: 1, SEES: 2, HAS: 0}, (1, 2, 0)),
        ({HAS: 3, "*": 4}, (4, 4, 3)),
        ({"user buys item": 1, "*": 4}, (1, 4, 4)),
        ({"user * item": 7, "* has *": -1}, (7, 7, -1)),
        ({"*": 4, BUYS: 1}, (1, 4, 4)),
        ({"* sees *": 1, "user *": 2, "*": 3}, (2, 1, 3)),
    ],
)
def test_every_edge_type_has_its_number_in_schema_order(fanout: Fanout, numbers: tuple[int, ...]) -> None:
    assert list(fanout_by_type(SCHEMA, fanout).items()) == list(zip((BUYS, SEES, HAS), numbers, strict=True))


@pytest.mark.parametrize(
    ("fanout", "message"),
    [
        ({BUYS: 1, SEES: 2}, r"no fanout for \('item', 'has', 'tag'\): name it \(0 draws none of it\), or"),
        ({}, r"no fanout for \('user', 'buys', 'item'\)"),
        (
            {"*": 1, ("user", "likes", "item"): 3},
            r"fanout 3 for \('user', 'likes', 'item'\): fits no edge type of \"user buys item\", \"user sees",
        ),
        ({"*": 1, "user likes *": 3}, r"fanout 3 for 'user likes \*': fits no edge type of"),
        ({"*": 1, "user *": 3}, r"fanout 3 for 'user \*': comes after what fits the same edge types"),
        ({"*": 1, BUYS: -2}, r"fanout -2 for \('user', 'buys', 'item'\): must be 0 or more, or -1"),
        ({"*": 1.5}, r"fanout 1.5 for \('user', 'buys', 'item'\): must be 0"),
        (True, "fanout True for"),
    ],
)
def test_what_is_missing_surplus_or_no_number_is_named(fanout: Fanout, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fanout_by_type(SCHEMA, fanout)


@pytest.mark.parametrize("fanouts", [5, "5,5", {BUYS: [5, 5], "*": [2, 2]}, {5, 3}])
def test_fanouts_are_a_list_with_an_entry_per_hop(fanouts: object) -> None:
    with pytest.raises(ValueError, match=r"fanouts .*: must be a list, as .*an entry per hop"):
        fanouts_by_type(SCHEMA, fanouts)  # type: ignore[arg-type]


def test_a_graph_without_edges_takes_a_number() -> None:
    assert fanout_by_type(Schema(("node",), ()), 3) == {}
