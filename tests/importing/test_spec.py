from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from khop.importing.read_spec import checked_spec
from khop.importing.spec import Spec, Split

NODES: dict[str, Any] = {"user": {"files": ["u.csv"], "id": "u"}, "item": {}}
BUYS: dict[str, Any] = {"files": ["e.csv"], "source": "u", "destination": "i"}
DAY = datetime(2020, 9, 20, tzinfo=UTC)


def spec(**values: Any) -> Spec:  # noqa: ANN401
    return checked_spec({"nodes": NODES, "edges": {"user buys item": BUYS}, **values}, "spec")


def test_edge_types_come_in_the_order_of_the_spec() -> None:
    several = {"files": ["t.csv"], "edges": [{"type": "item like item", "source": "a", "destination": "b"}]}
    found = spec(edges_from=[several])
    assert [edge_type for edge_type, _ in found.edge_types()] == [
        ("user", "buys", "item"),
        ("item", "like", "item"),
    ]


def test_the_split_of_a_type_is_its_own_or_that_of_all() -> None:
    own = {"files": ["i.csv"], "id": "i", "split": {"ratio": [0.5, 0.25, 0.25]}}
    found = spec(nodes={**NODES, "item": own}, splits={"ratio": [0.8, 0.1, 0.1]})
    assert found.node_split("item").ratio == (0.5, 0.25, 0.25)  # type: ignore[union-attr]
    assert found.node_split("user").ratio == (0.8, 0.1, 0.1)  # type: ignore[union-attr]
    assert spec().node_split("user") is None


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (
            {"edges": {"user buys thing": BUYS}},
            r"no node type 'thing'; there are user, item; add \[nodes.thing\]",
        ),
        ({"edges": {"user buys": BUYS}}, "give source type, relation and destination type"),
        ({"edges": {"user buys user": {**BUYS, "reverse": "buys"}}}, "'user buys user' is given twice"),
        ({"splits": {"time": {"val": DAY, "test": DAY}}}, "must be before test"),
        ({"splits": {"time": {"val": 2, "test": 3}}}, "time_unit is missing"),
        ({"splits": {"time": {"val": DAY, "test": 3}}}, "must both be times"),
        ({"splits": {}}, "give one of time, ratio and column"),
        (
            {"edges": {"user buys item": {**BUYS, "split": {"time": {"val": 2, "test": 3}}}}},
            "time_unit is missing",
        ),
        ({"splits": {"ratio": [0.5, 0.1, 0.1]}}, "three shares of 0 or more with sum 1"),
        ({"nodes": {**NODES, "item": {"id": "i"}}}, "files are missing"),
        ({"nodes": {**NODES, "item": {"files": ["i.csv"]}}}, "id is missing"),
        ({"nodes": {**NODES, "item": {"files": ["i"], "id": "i", "unit": "s"}}}, "describe time = ..."),
        (
            {"nodes": {**NODES, "item": {"files": ["i"], "database": "d", "id": "i"}}},
            "files and database are given",
        ),
        ({"nodes": {**NODES, "item": {"database": "d", "id": "i"}}}, "needs table = ... and order_by"),
        ({"nodes": {}}, "nodes"),
    ],
)
def test_contradictions_are_one_sentence(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        spec(**values)
    assert str(caught.value).endswith("(spec)")
    assert "\n" not in str(caught.value)


def test_a_split_has_one_rule() -> None:
    for split in ({}, {"ratio": [1.0, 0.0, 0.0], "column": "s"}, {"column": "s", "val": "train"}):
        with pytest.raises(ValueError, match="give one of|different values"):
            spec(nodes={**NODES, "user": {**NODES["user"], "split": split}})


def test_labels_name_each_class_once() -> None:
    label = {"column": "y", "classes": ["a", "a"]}
    with pytest.raises(ValueError, match="a name is given twice"):
        spec(nodes={**NODES, "user": {**NODES["user"], "label": label}})


def test_a_cut_off_without_a_zone_is_taken_as_utc_and_a_note_says_so() -> None:
    cut_offs = {"val": DAY.date(), "test": (DAY + timedelta(days=1)).replace(tzinfo=None)}
    with pytest.warns(UserWarning, match="without a zone is taken as UTC"):
        split = Split.model_validate({"time": cut_offs})
    assert split.time is not None
    assert split.time.val == DAY
