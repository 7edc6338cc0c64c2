"""Optimizer of a whole model: of its weights, and RowAdam for sparse and sharded embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from khop.models.node_embedding import NodeEmbedding
from khop.runtime.group import Group
from khop.training.optimizer_settings import ADAM, OptimizerSettings, clip_gradients, square_sum
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
    """An optimizer of parameters, and RowAdam for `NodeEmbedding`; one step updates both.

    Weight decay applies to parameters only: it would change embedding rows that no batch reads.
    """

    def __init__(
        self,
        model: nn.Module,
        learning_rate: float,
        weight_decay: float,
        settings: OptimizerSettings = ADAM,
    ) -> None:
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        weights = settings.over(parameters, learning_rate, weight_decay)
        has_rows = any(isinstance(module, NodeEmbedding) for module in model.modules())
        self._rows = RowAdam(model, learning_rate) if has_rows else None
        self.parts = (weights,) if self._rows is None else (weights, self._rows)
        self._parameters, self._clip_norm = parameters, settings.clip_norm

    def zero_grad(self) -> None:
        """Reset all gradients."""
        for part in self.parts:
            part.zero_grad()

    def exchange(self) -> None:
        """Average the gradients of `NodeEmbedding` over the ranks. Collective if the model has any."""
        if self._rows is not None:
            self._rows.exchange()

    def clip(self, group: Group) -> None:
        """Scale the exchanged gradients to the limit of their norm, if there is one. Collective then."""
        if self._clip_norm is None:
            return
        whole = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        rows = [] if self._rows is None else self._rows.gradients()
        sharded = [gradient for gradient, place in rows if place == "sharded"]
        whole += [gradient for gradient, place in rows if place == "whole"]
        squares = [square_sum(whole)] if whole else []
        if sharded:
            squares.append(group.gather(square_sum(sharded)).sum())
        if squares:
            clip_gradients([*whole, *sharded], torch.stack(squares).sum(), self._clip_norm)

    def step(self) -> None:
        """Update parameters and rows, after gradients are exchanged."""
        for part in self.parts:
            part.step()

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Parameter groups of the weights, then the group of RowAdam."""
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
