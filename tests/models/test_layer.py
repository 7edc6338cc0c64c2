"""A layer in training and evaluation: dropout, residual rows, and options that are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from khop.batch import Block
from khop.models.layer import Layer, LayerOptions, linear_weight
from khop.models.sage import SAGE
from khop.models.sizes import ModelSizes
from support.small_graphs import one_type

TO = ("node", "to", "node")


def layer_and_input(width: int) -> tuple[Layer, dict[str, torch.Tensor], Block]:
    torch.manual_seed(3)
    batch = one_type().batch(torch.arange(20), [4], "node")
    model = SAGE(ModelSizes({"node": 7}, (TO,), "node", 3), hidden=width, layers=1)
    (layer,) = model.layers
    assert isinstance(layer, Layer)
    return layer, {"node": batch.columns["node"]["x"]}, batch.blocks[0]


def test_residual_adds_the_rows_themselves_where_widths_are_equal() -> None:
    layer, h, block = layer_and_input(7)
    plain = layer.eval()(h, block)["node"]
    layer.options = replace(layer.options, residual="add")
    torch.testing.assert_close(layer(h, block)["node"], plain + h["node"][: len(plain)])
    wide, h, block = layer_and_input(5)
    plain = wide.eval()(h, block)["node"]
    wide.options = replace(wide.options, residual="add")
    assert torch.equal(wide(h, block)["node"], plain)


def test_dropout_is_for_training_alone() -> None:
    layer, h, block = layer_and_input(7)
    layer.options = replace(layer.options, dropout=0.5)
    kept = layer.eval()(h, block)["node"]
    dropped = layer.train()(h, block)["node"]
    is_out = dropped == 0
    assert bool((is_out & (kept > 0)).any())
    torch.testing.assert_close(dropped[~is_out], 2 * kept[~is_out])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"hidden": 0}, "hidden 0: must be at least 1"),
        ({"hidden": 2.0}, "hidden 2.0: must be a whole number"),
        ({"dropout": 1.0}, "dropout 1.0: must be at least 0 and below 1"),
        ({"norm": "batch"}, "norm 'batch': must be one of"),
        ({"residual": True}, "residual True: must be one of"),
    ],
)
def test_other_options_are_refused(options: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        LayerOptions(**options)  # type: ignore[arg-type]


def test_weights_begin_as_torchs() -> None:
    torch.manual_seed(1)
    weight = linear_weight(5, 3)
    torch.manual_seed(1)
    assert torch.equal(weight, torch.nn.Linear(3, 5, bias=False).weight)
