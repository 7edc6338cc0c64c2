"""Optimizer of a whole model: Adam, and RowAdam for sparse and sharded embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from khop.models.node_embedding import NodeEmbedding
from khop.training.row_adam import RowAdam


class HasState(Protocol):
    """An optimizer with a state that a checkpoint can hold; torch's optimizers implement it."""

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Parameter groups: parameters under "params", and their settings."""
        ...

    @property
    def state(self) -> Mapping[Tensor, Mapping[str, Any]]:
        """State such as moments, by parameter."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load state and groups; parameters are numbered in the order of the groups."""
        ...


class ModelOptimizer:
    """Adam for parameters and RowAdam for `NodeEmbedding`; one step updates both.

    Weight decay applies to parameters only: it would change embedding rows that no batch reads.
    """

    def __init__(self, model: nn.Module, learning_rate: float, weight_decay: float) -> None:
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        adam = torch.optim.Adam(parameters, lr=learning_rate, weight_decay=weight_decay)
        has_rows = any(isinstance(module, NodeEmbedding) for module in model.modules())
        self._rows = RowAdam(model, learning_rate) if has_rows else None
        self.parts = (adam,) if self._rows is None else (adam, self._rows)

    def zero_grad(self) -> None:
        """Reset all gradients."""
        for part in self.parts:
            part.zero_grad()

    def exchange(self) -> None:
        """Average the gradients of `NodeEmbedding` over the ranks. Collective if the model has any."""
        if self._rows is not None:
            self._rows.exchange()

    def step(self) -> None:
        """Update parameters and rows, after gradients are exchanged."""
        for part in self.parts:
            part.step()

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Parameter groups of Adam, then the group of RowAdam."""
        return [group for part in self.parts for group in part.param_groups]

    @property
    def state(self) -> Mapping[Tensor, Mapping[str, Any]]:
        """State by parameter, and by the weight of each `NodeEmbedding`."""
        return {parameter: state for part in self.parts for parameter, state in part.state.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load state and groups; parameters are numbered in the order of `param_groups`."""
        groups, start = list(state_dict["param_groups"]), 0
        for part in self.parts:
            own, groups = groups[: len(part.param_groups)], groups[len(part.param_groups) :]
            count = sum(len(group["params"]) for group in own)
            numbers = {start + number: number for number in range(count)}
            state = {numbers[n]: of for n, of in state_dict["state"].items() if n in numbers}
            renumbered = [group | {"params": [numbers[n] for n in group["params"]]} for group in own]
            part.load_state_dict({"state": state, "param_groups": renumbered})
            start += count
