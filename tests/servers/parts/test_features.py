"""Rows of columns over parts on several servers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import khop
from khop.features.store import Rows
from khop.servers.parts.features import SharedFeatures
from support.parts_in_process import part_services
from support.small_typed_folders import BUYS


@pytest.fixture
def features(typed_parts: Path) -> SharedFeatures:
    features: SharedFeatures = part_services(typed_parts)[1]._served.features  # type: ignore[attr-defined]
    return features


def test_rows_are_those_of_all_parts_in_one_process(features: SharedFeatures, typed_parts: Path) -> None:
    wanted = {
        "user": Rows(torch.tensor([299, 0, 5, 5, 150]), ("x", "age"), {"age": 2}, frozenset({"x"})),
        BUYS: Rows(torch.tensor([2999, 0, 1500]), ("time", "weight")),
        "item": Rows(torch.empty(0, dtype=torch.int64), ("price",)),
    }
    found, expected = features.gather(wanted), khop.open_graph(typed_parts).features.gather(wanted)
    assert list(found) == list(expected)
    for type_, columns in expected.items():
        assert list(found[type_]) == list(columns)
        for name, column in columns.items():
            assert found[type_][name].dtype == column.dtype
            assert torch.equal(found[type_][name], column)


def test_rows_of_the_own_part_ask_nobody(features: SharedFeatures) -> None:
    own = features.local_rows("user")
    assert 0 < len(own) < 300
    features.gather({"user": Rows(torch.tensor(own), ("x",))})
    assert not any(owner.asked for owner in features.exchange._owners.values())  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("type_", "rows", "words"),
    [
        ("shop", Rows(torch.tensor([0]), ("x",)), "no columns of type 'shop'"),
        ("user", Rows(torch.tensor([0]), ("y",)), "no column 'y' of 'user'"),
        ("user", Rows(torch.tensor([300]), ("x",)), r"row id 300 at position 0: must be in \[0, 300\)"),
    ],
)
def test_a_row_that_there_is_not_is_named(
    features: SharedFeatures, type_: str, rows: Rows, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        features.gather({type_: rows})


def test_damaged_requests_for_rows_are_refused(features: SharedFeatures) -> None:
    with pytest.raises(ValueError, match="type 9 of"):
        features.answers().answer(torch.tensor([9, 1, 1, 1, 0, 0]).view(torch.uint8))
