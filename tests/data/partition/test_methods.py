"""The methods of khop are components, and their names are known without loading them."""

from __future__ import annotations

import pytest

from khop.components import NoOptions
from khop.data.partition.methods import PARTITIONERS
from khop.data.partition.partitioners import PartitionContext


@pytest.mark.parametrize("kind", PARTITIONERS.builtin)
def test_every_method_is_a_component(kind: str) -> None:
    component = PARTITIONERS.load(kind)
    assert component.options is NoOptions
    made = component.build(NoOptions(), PartitionContext(parts=3, seed=7))
    assert made.passes >= 1
    assert getattr(made, "seed", 7) == 7
