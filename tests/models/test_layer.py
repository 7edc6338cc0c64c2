"""A layer in training and evaluation: dropout, residual rows, and options that are refused.

What a layer adds up: own rows and means of in-neighbors with weights, for many destinations or few.

Names of parameters: different types have different names, and torch's containers take each.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from khop.batch import Adjacency, Block
from khop.kernels.segment import segment_mean_reference
from khop.kernels.segment_weighted import segment_weighted_sum_reference
from khop.models.encoder import ModelSizes
from khop.models.layer import Layer, LayerOptions, LayerSum, linear_weight, parameter_name
from khop.models.sage import SAGE
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


DESTINATIONS, SOURCES = 200, 250


def edges_to(share: float, seed: int = 3) -> Adjacency:
    """Into so large a share of the destinations."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(1, 5, (DESTINATIONS,), generator=generator)
    counts *= torch.rand(DESTINATIONS, generator=generator) < share
    indptr = F.pad(counts.cumsum(0), (1, 0))
    indices = torch.randint(SOURCES, (int(indptr[-1]),), generator=generator, dtype=torch.int32)
    return Adjacency(indptr, indices, SOURCES)


def numbers(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(shape[0])
    return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()


@pytest.mark.parametrize("shares", [(), (0.0,), (0.05,), (0.5, 1.0), (1.0, 1.0), (1.0, 0.0, 0.1)])
@pytest.mark.parametrize(("inputs", "outputs"), [(3, 20), (20, 3)])
@pytest.mark.parametrize("has_own", [False, True])
@pytest.mark.parametrize("activation", ["none", "relu"])
@pytest.mark.parametrize("has_weights", [False, True])
def test_the_sum_is_that_of_its_terms_however_many_destinations_have_edges(
    shares: tuple[float, ...], inputs: int, outputs: int, has_own: bool, activation: str, has_weights: bool
) -> None:
    h, bias, own = numbers(SOURCES, inputs), numbers(outputs), numbers(outputs, inputs)
    weights = [numbers(outputs, inputs) for _ in shares]
    adjacencies = [edges_to(share, seed) for seed, share in enumerate(shares)]
    if has_weights:
        adjacencies = [replace(of, weight=numbers(of.indices.numel()).detach().float()) for of in adjacencies]

    sums = LayerSum(DESTINATIONS, bias)
    expected = bias.repeat(DESTINATIONS, 1)
    if has_own:
        sums.add_own(h, own)
        expected = expected + h[:DESTINATIONS] @ own.T
    for adjacency, weight in zip(adjacencies, weights, strict=True):
        sums.add_neighbors(h, adjacency, weight)
        operands = (adjacency.indptr, adjacency.indices)
        if adjacency.weight is None:
            expected = expected + segment_mean_reference(h, *operands) @ weight.T
        else:
            expected = expected + segment_weighted_sum_reference(h, adjacency.weight, *operands) @ weight.T
    out = sums.total("relu" if activation == "relu" else "none")
    expected = expected.relu() if activation == "relu" else expected

    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
    pull = numbers(DESTINATIONS, outputs).detach()
    operands = (bias, *weights, *((h, own) if has_own else ()))
    ours = torch.autograd.grad((out * pull).sum(), operands)
    theirs = torch.autograd.grad((expected * pull).sum(), operands)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-11)


def test_a_hop_that_was_skipped_gives_its_weight_a_gradient_of_zeros() -> None:
    h, bias, weight = numbers(SOURCES, 4), numbers(3), numbers(3, 4)
    sums = LayerSum(DESTINATIONS, bias)
    sums.add_neighbors(h, None, weight)
    sums.total("relu").sum().backward()
    assert weight.grad is not None
    assert not weight.grad.any()


WORDS = st.text(st.sampled_from("ab.:%2E"), min_size=1, max_size=4)
TYPES = st.lists(WORDS, min_size=1, max_size=3).filter(lambda names: len(names) != 2)


@given(first=TYPES, second=TYPES)
def test_names_are_unique_and_hold_no_dot(first: list[str], second: list[str]) -> None:
    names = parameter_name(*first), parameter_name(*second)
    assert (names[0] == names[1]) is (first == second)
    assert "." not in names[0]
    nn.ModuleDict({names[0]: nn.Identity()})


def test_attributes_of_containers_may_be_types() -> None:
    container = nn.ModuleDict({parameter_name(name): nn.Identity() for name in ("items", "keys", "type")})
    assert len(container) == 3
