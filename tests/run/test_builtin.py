"""Options of khop's own rules that do not fit together are errors.

The options of optimizers have the defaults of torch.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
import torch

from khop.components import OPTIMIZERS
from khop.sampling.rules.sum import SumOptions
from khop.training.optimizer_settings import component_of_class


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


@pytest.mark.parametrize("kind", OPTIMIZERS.builtin)
def test_defaults_are_those_of_torch(kind: str) -> None:
    component = OPTIMIZERS.load(kind)
    settings = component.build(component.options(), None)
    made = settings.over([torch.nn.Parameter(torch.zeros(1))], 0.1, 0.0)
    plain: Any = settings.kind([torch.nn.Parameter(torch.zeros(1))], lr=0.1, weight_decay=0.0)
    own, expected = ({**each.param_groups[0], "params": None, "fused": None} for each in (made, plain))
    assert own == expected


def test_any_class_of_optimizers_has_its_plain_arguments_as_options() -> None:
    component = component_of_class(torch.optim.Adamax)
    assert component is not None
    options = component.options(betas=(0.5, 0.6))
    assert asdict(options) == {"betas": (0.5, 0.6), "eps": 1e-8, "maximize": False}
    settings = component.build(options, None)
    assert (settings.kind, settings.options["betas"]) == (torch.optim.Adamax, (0.5, 0.6))
    assert component_of_class(torch.nn.Linear) is None
    assert component_of_class(3) is None
