"""The optimizer of a whole model: Adam, and RowAdam beside it where there are learned rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from khop.models.learned_rows import LearnedRows
from khop.training.row_adam import RowAdam


class HasState(Protocol):
    """What a checkpoint asks of an optimizer; those of torch have it."""

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Parameters under "params", and their settings."""
        ...

    @property
    def state(self) -> Mapping[Tensor, Mapping[str, Any]]:
        """Moments and such, by parameter."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take state and groups, with parameters by their number in the order of the groups."""
        ...


class ModelOptimizer:
    """Adam for parameters, RowAdam for learned rows that train by themselves; one step is of both.

    Weight decay is of parameters alone: it would change rows that nobody reads.
    """

    def __init__(self, model: nn.Module, learning_rate: float, weight_decay: float) -> None:
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        adam = torch.optim.Adam(parameters, lr=learning_rate, weight_decay=weight_decay)
        has_rows = any(isinstance(module, LearnedRows) for module in model.modules())
        self._rows = RowAdam(model, learning_rate) if has_rows else None
        self.parts = (adam,) if self._rows is None else (adam, self._rows)

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for part in self.parts:
            part.zero_grad()

    def exchange(self) -> None:
        """Average the gradients of learned rows over the ranks. Collective where there are such rows."""
        if self._rows is not None:
            self._rows.exchange()

    def step(self) -> None:
        """Change parameters and rows, once gradients are exchanged."""
        for part in self.parts:
            part.step()

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Those of Adam, then that of RowAdam."""
        return [group for part in self.parts for group in part.param_groups]

    @property
    def state(self) -> Mapping[Tensor, Mapping[str, Any]]:
        """By parameter, and by the weight of learned rows."""
        return {parameter: state for part in self.parts for parameter, state in part.state.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take state and groups, with parameters by their number in the order of `param_groups`."""
        groups, start = list(state_dict["param_groups"]), 0
        for part in self.parts:
            own, groups = groups[: len(part.param_groups)], groups[len(part.param_groups) :]
            count = sum(len(group["params"]) for group in own)
            numbers = {start + number: number for number in range(count)}
            state = {numbers[n]: of for n, of in state_dict["state"].items() if n in numbers}
            renumbered = [group | {"params": [numbers[n] for n in group["params"]]} for group in own]
            part.load_state_dict({"state": state, "param_groups": renumbered})
            start += count
