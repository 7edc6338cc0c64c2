"""Pictures of the test split."""

from __future__ import annotations

from dataclasses import replace

import pytest

from khop.run.reporting.examined import Confusion, Examined, RankingCurve, Scatter
from khop.run.reporting.page import page
from run.reporting.test_page import Structure, run


@pytest.mark.parametrize(
    "picture",
    [
        RankingCurve((1, 10, 100), (0.1, 0.5, 1.0), 99),
        Scatter(((1.0, 2.0), (3.0, 3.0))),
        Scatter(()),
        Confusion(tuple(f"class {n}" for n in range(31)), tuple((1,) * 31 for _ in range(31))),
        None,
    ],
)
def test_every_kind_of_split_has_a_picture(picture: Confusion | RankingCurve | Scatter | None) -> None:
    split = Examined(picture, ("id",), (("a",),), "The worst.")
    Structure(page([replace(run("a"), split=split)], "today"))
