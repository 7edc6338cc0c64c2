from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from khop.models.renumbered import renumbered
from khop.models.sage import SAGE
from khop.models.sizes import ModelSizes

SIZES = ModelSizes({"item": 3}, (("user", "buys", "item"),), "item", 2, embedding=4, embedded={"user": 6})


def model(update: str) -> SAGE:
    return SAGE(replace(SIZES, embedding_update=update), 8, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("update", ["dense", "sparse"])
def test_rows_are_read_by_new_numbers_inside_the_block(update: str) -> None:
    made = model(update)
    (before,) = made.encoder.tables.values()
    with renumbered(made, {"user": torch.tensor([1, 4])}, {"user": 6, "item": 9}):
        (inside,) = made.encoder.tables.values()
        torch.testing.assert_close(inside(torch.tensor([1, 0])), before.weight[[4, 1]], rtol=0, atol=0)
    assert list(made.encoder.tables.values()) == [before]


@pytest.mark.parametrize("update", ["dense", "sparse"])
def test_a_new_node_has_the_row_of_unknown_nodes(update: str) -> None:
    made = SAGE(replace(SIZES, embedding_update=update, unknown=0.5), 8, 1)  # type: ignore[arg-type]
    (before,), (unknown,) = made.encoder.tables.values(), made.encoder.unknown.values()
    torch.nn.init.normal_(unknown.weight)
    with renumbered(made, {"user": torch.tensor([1, 6, 4, 9])}, {"user": 6, "item": 9}):
        (inside,) = made.encoder.tables.values()
        found = inside(torch.arange(4))
    expected = torch.stack([before.weight[1], unknown.weight, before.weight[4], unknown.weight])
    assert torch.equal(found, expected)
    assert list(made.encoder.tables.values()) == [before]


def test_a_type_without_nodes_in_training_has_that_row_alone() -> None:
    made = SAGE(replace(SIZES, embedded={"user": 0}, unknown=0.5), 8, 1)
    with renumbered(made, {"user": torch.tensor([0, 1])}, {"user": 0, "item": 9}):
        (inside,) = made.encoder.tables.values()
        assert torch.equal(inside(torch.arange(2)), torch.zeros(2, 4))


def test_a_node_after_those_of_training_is_refused() -> None:
    nodes = {"user": torch.tensor([1, 6])}
    with (
        pytest.raises(ValueError, match=r"node type 'user': .* set model.unknown, such as 0.05, and train"),
        renumbered(model("dense"), nodes, {"user": 6, "item": 9}),
    ):
        pass


def test_a_custom_model_with_embeddings_by_node_is_refused() -> None:
    custom = nn.ModuleDict({"rows": nn.Embedding(6, 2)})
    with pytest.raises(ValueError, match=r"ModuleDict.rows: has 6 rows"), renumbered(custom, {}, {"user": 6}):
        pass
    with renumbered(nn.ModuleDict({"words": nn.Embedding(7, 2)}), {}, {"user": 6}):
        pass
