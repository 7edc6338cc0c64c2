"""Typed batches of a Loader through models: several seed types, skipped edge types, and Adam's state."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor, nn

from khop import Graph, Loader, NeighborSampler
from khop.batch import Batch
from khop.models.rgcn import RGCN
from khop.models.sage import SAGE
from khop.models.stack import Stack
from khop.sampling.sampler import Fanout
from support.small_graphs import shop

ON = ("tag", "on", "item")
SMALL = shop()
GRAPH = Graph(SMALL.store, SMALL.features)
TARGETS = ["item", "user", "tag"]
MODELS: Mapping[str, Callable[[], Stack]] = {
    "sage": lambda: SAGE.for_graph(GRAPH, 8, 2, TARGETS, outputs=4, embedding=5, norm="layer"),
    "rgcn": lambda: RGCN.for_graph(GRAPH, 8, 2, TARGETS, outputs=4, embedding=5, residual="add"),
}
every_model = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)


def loader(seeds: Mapping[str, Tensor], fanouts: list[Fanout], batch_size: int = 16) -> Loader:
    return Loader(NeighborSampler(GRAPH, fanouts), seeds, batch_size, shuffle=True, columns=["x"])


def step(model: Stack, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(torch.stack([rows.square().sum() for rows in model(batch).values()]).sum())
    optimizer.step()


def moments(optimizer: torch.optim.Adam, parameter: nn.Parameter) -> tuple[float, Tensor, Tensor]:
    state = optimizer.state[parameter]
    return float(state["step"]), state["exp_avg"].clone(), state["exp_avg_sq"].clone()


@every_model
def test_every_seed_of_every_type_has_a_row_in_its_batch(make: Callable[[], Stack]) -> None:
    seeds = {"user": torch.arange(30), "item": torch.arange(5, 25), "tag": torch.arange(5)}
    model, seen = make(), {t: list[int]() for t in seeds}
    for batch in loader(seeds, [3, 2]).epoch(0):
        assert sum(ids.numel() for ids in batch.seed_nodes.values()) <= 16
        for node_type, rows in model(batch).items():
            ids = batch.seed_nodes[node_type]
            assert rows.shape == (ids.numel(), 4)
            assert torch.equal(batch.sample.nodes[node_type][batch.sample.seed_index[node_type]], ids)
            seen[node_type] += ids.tolist()
    assert {t: sorted(ids) for t, ids in seen.items()} == {t: ids.tolist() for t, ids in seeds.items()}


@every_model
def test_adam_takes_a_type_that_a_batch_lacks_as_zeros(make: Callable[[], Stack]) -> None:
    """Its moments fade by their betas and its steps are counted, as where gradients of zero were given."""
    model = make()
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.99))
    everything = {"user": torch.arange(30), "item": torch.arange(40), "tag": torch.arange(5)}
    step(model, optimizer, loader(everything, [3, 3], 75).batch(0, 0))
    lacking = [p for name, p in model.named_parameters() if "tag" in name or "user" in name]
    assert lacking
    assert all(bool(optimizer.state[parameter]["exp_avg"].any()) for parameter in lacking)
    before = [moments(optimizer, parameter) for parameter in lacking]
    step(model, optimizer, loader({"item": torch.arange(40)}, [0, 0]).batch(0, 0))
    for parameter, (count, first, second) in zip(lacking, before, strict=True):
        assert parameter.grad is not None
        assert not parameter.grad.any()
        now = moments(optimizer, parameter)
        assert now[0] == count + 1 == 2
        torch.testing.assert_close(now[1], first * 0.9)
        torch.testing.assert_close(now[2], second * 0.99)


@every_model
@pytest.mark.parametrize("skipped", [0, 1])
def test_an_edge_type_is_skipped_at_one_hop_alone(make: Callable[[], Stack], skipped: int) -> None:
    """That layer's weights of it have gradients of zero, the other layer's are trained."""
    fanouts: list[Fanout] = [{ON: 0, "*": 3} if hop == skipped else 3 for hop in range(2)]
    model = make()
    batch = loader({"item": torch.arange(40), "user": torch.arange(30)}, fanouts, 70).batch(0, 0)
    drawn = [block.adjacencies[ON].indices.numel() for block in reversed(batch.blocks)]
    assert drawn[skipped] == 0 < drawn[1 - skipped]
    torch.autograd.backward(torch.stack([rows.square().sum() for rows in model(batch).values()]).sum())
    assert all(parameter.grad is not None for parameter in model.parameters())
    gradients = [
        parameter.grad
        for layer in reversed(list(model.layers))
        for name, parameter in layer.named_parameters()
        if name.endswith(":".join(ON))
    ]
    assert [bool(of_hop.any()) for of_hop in gradients if of_hop is not None] == [
        hop != skipped for hop in range(2)
    ]
