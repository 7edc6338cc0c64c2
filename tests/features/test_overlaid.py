"""Some types come from a table of their own, the others from below."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from contracts.feature_store import BUYS, PROMISES, Columns, Make
from khop.features.overlaid import OverlaidFeatures
from khop.features.table import FeatureTable


def make(columns: Columns) -> OverlaidFeatures:
    """Edges above, nodes below, where there are other edges."""
    others = {BUYS: {"price": torch.zeros(99)}}
    below = FeatureTable({**columns, **others})
    return OverlaidFeatures(below, FeatureTable({t: of for t, of in columns.items() if t in others}))


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_it_keeps(promise: Callable[[Make], None]) -> None:
    promise(make)


def test_it_asks_other_ranks_as_what_is_below_does() -> None:
    class Asking(FeatureTable):
        lanes = "those of the ranks"

    assert OverlaidFeatures(Asking({}), FeatureTable({})).lanes == "those of the ranks"
    assert OverlaidFeatures(FeatureTable({}), FeatureTable({})).lanes is None
