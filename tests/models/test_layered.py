"""Which models expose their layers, and which types their layers need."""

from __future__ import annotations

import pytest
from torch import nn

from khop import models
from khop.models.layered import Layered, destination_types
from khop.models.sage import SAGE
from support.small_graphs import one_type

EDGE_TYPES = (
    ("user", "buys", "item"),
    ("item", "has", "tag"),
    ("shop", "employs", "user"),
    ("tag", "on", "item"),
)


def test_models_are_imported_by_name_when_they_are_used() -> None:
    assert dir(models) == sorted(models.__all__)
    assert models.SAGE is SAGE
    with pytest.raises(AttributeError, match=r"module 'khop\.models' has no attribute 'SAEG'"):
        models.SAEG  # noqa: B018


def test_a_sage_exposes_its_layers_and_a_plain_module_does_not() -> None:
    assert isinstance(SAGE.for_graph(one_type().store, hidden=4), Layered)
    assert not isinstance(nn.Linear(2, 2), Layered)


def test_types_are_those_that_reach_the_target_in_the_layers_that_are_left() -> None:
    assert destination_types(EDGE_TYPES, ("item",), 3) == [
        ("item", "user", "tag", "shop"),
        ("item", "user", "tag"),
        ("item",),
    ]


def test_without_layers_or_edges_there_is_little_to_reach() -> None:
    assert destination_types(EDGE_TYPES, ("item",), 0) == []
    assert destination_types((), ("item",), 2) == [("item",), ("item",)]
