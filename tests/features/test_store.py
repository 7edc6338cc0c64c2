"""Rows of some types are known by other ids than in the store that has them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from khop.features.store import RenumberedRows, Rows
from khop.features.table import FeatureTable
from khop.testing.feature_store import BUYS, PROMISES, Columns, Make


def make(columns: Columns) -> RenumberedRows:
    """Of every type the rows stand the other way round below, after one that is not wanted."""
    counts = {t: len(column) for t, of_type in columns.items() for column in of_type.values()}
    below = {
        t: {name: torch.cat([column[:1], column.flip(0)]) for name, column in of_type.items()}
        for t, of_type in columns.items()
    }
    return RenumberedRows(FeatureTable(below), {t: torch.arange(count, 0, -1) for t, count in counts.items()})


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_it_keeps(promise: Callable[[Make], None]) -> None:
    promise(make)


def test_where_nothing_is_wanted_the_store_below_is_asked_all_the_same() -> None:
    class CallContext(FeatureTable):
        is_collective = True

    store = RenumberedRows(CallContext({BUYS: {}}), {BUYS: torch.arange(3)})
    assert store.is_collective
    assert store.gather({BUYS: Rows(torch.arange(0), ())}) == {BUYS: {}}
    assert not RenumberedRows(FeatureTable({}), {}).is_collective
