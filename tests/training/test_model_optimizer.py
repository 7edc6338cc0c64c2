"""One optimizer for weights and rows: each part takes its own steps, and its state comes back."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import nn

from khop.models.node_embedding import NodeEmbedding
from khop.training.model_optimizer import ModelOptimizer


class Model(nn.Module):
    """Rows of nodes and a layer over them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.rows = NodeEmbedding(6, 3, "sparse")
        self.layer = nn.Linear(3, 2)
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(self.rows(ids)) * self.frozen
        return out


def step(model: Model, optimizer: ModelOptimizer, ids: list[int]) -> None:
    optimizer.zero_grad()
    model(torch.tensor(ids)).square().sum().backward()
    optimizer.exchange()
    optimizer.step()


def test_weight_decay_is_for_parameters_alone() -> None:
    model = Model()
    rows, optimizer = model.rows.weight.detach().clone(), ModelOptimizer(model, 0.1, 0.5)
    step(model, optimizer, [0, 1])
    assert torch.equal(model.rows.weight[2:], rows[2:])
    assert not torch.equal(model.rows.weight[:2], rows[:2])
    assert [len(group["params"]) for group in optimizer.param_groups] == [2, 1]
    assert [group.get("weight_decay") for group in optimizer.param_groups] == [0.5, None]


def test_a_loaded_state_continues_as_before() -> None:
    model, again = Model(), Model()
    optimizer, restored = ModelOptimizer(model, 0.1, 0.0), ModelOptimizer(again, 0.1, 0.0)
    step(model, optimizer, [0, 1, 1])
    again.load_state_dict(model.state_dict())
    numbers = {p: n for n, p in enumerate(p for group in optimizer.param_groups for p in group["params"])}
    groups = [{**g, "params": [numbers[p] for p in g["params"]]} for g in optimizer.param_groups]
    state = {numbers[parameter]: deepcopy(of) for parameter, of in optimizer.state.items()}
    restored.load_state_dict({"state": state, "param_groups": groups})
    for ids in ([1, 2], [5]):
        step(model, optimizer, ids)
        step(again, restored, ids)
    for own, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(own, other)


def test_without_rows_there_is_adam_alone() -> None:
    layer = nn.Linear(2, 2)
    optimizer = ModelOptimizer(layer, 0.1, 0.0)
    assert [type(part) for part in optimizer.parts] == [torch.optim.Adam]
    optimizer.exchange()
