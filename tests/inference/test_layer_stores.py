"""Rows of a stage in memory, of one process or in memory that several share."""

from __future__ import annotations

from contextlib import closing

import pytest
import torch

from khop.inference.layer_stores import Memory, OwnRows, SharedRows
from khop.inference.stages import VALUES, Rows, Stage
from khop.runtime.group import ALONE

DTYPES = [torch.float32, torch.bfloat16, torch.int64]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["own", "shared"])
def test_rows_put_in_any_order_come_back(dtype: torch.dtype, kind: str) -> None:
    stage = Stage(0, "node", 7, 2, torch.empty(0, 3, dtype=dtype))
    place: Rows | None = OwnRows(stage, ALONE) if kind == "own" else SharedRows.opened(stage, ALONE)
    assert place is not None
    rows = torch.arange(21).view(7, 3).to(dtype)
    with closing(place):
        assert list(place.missing) == [0, 1, 2, 3]
        for chunk in (2, 0, 3, 1):
            place.put(chunk, rows[stage.span(chunk)])
        found = place.finished()
    assert torch.equal(found, rows)


def test_rows_are_the_input_of_the_next_layer() -> None:
    store = Memory(ALONE)
    rows = {"user": torch.ones(2, 3), "item": torch.zeros(4, 3)}
    assert isinstance(store.open(Stage(0, "user", 2, 1, torch.empty(0, 3))), OwnRows)
    features = store.store([], rows)
    assert {t: tuple(specs) for t, specs in features.specs.items()} == {t: (VALUES,) for t in rows}
    assert features.local_rows("item") == range(4)
