"""Options of khop's own rules that do not fit together are errors."""

from __future__ import annotations

from typing import Any

import pytest

from khop.config.builtin import SumOptions


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inner": "top-k"}, "inner is 'top-k' and column is not set: give the column"),
        (
            {"inner": "labor", "column": "price"},
            "column is 'price' and inner is labor: it does not",
        ),
        ({"inner": "labor", "replacement": True}, "replacement is True and inner is labor"),
        ({"kappa": 2}, "kappa is 2 and inner is not set: it does not read kappa"),
        ({"inner": "uniform", "layer_dependent": True}, "layer_dependent is True and inner is uniform"),
    ],
    ids=str,
)
def test_options_that_the_inner_rule_does_not_read_are_errors(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SumOptions(**options)
