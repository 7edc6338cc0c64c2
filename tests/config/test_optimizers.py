"""The options of optimizers have the defaults of torch."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
import torch

from khop.config.build_optimizer import component_of_class
from khop.config.kinds import OPTIMIZERS


@pytest.mark.parametrize("kind", OPTIMIZERS.builtin)
def test_defaults_are_those_of_torch(kind: str) -> None:
    component = OPTIMIZERS.load(kind)
    settings = component.build(component.options(), None)
    made = settings.over([torch.nn.Parameter(torch.zeros(1))], 0.1, 0.0)
    plain: Any = settings.kind([torch.nn.Parameter(torch.zeros(1))], lr=0.1, weight_decay=0.0)
    own, expected = ({**each.param_groups[0], "params": None} for each in (made, plain))
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
