"""Optimizers of a run, from their options; and the declaration of any other class of optimizers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import asdict, field, make_dataclass
from typing import Any

import torch

from khop.components import Component
from khop.config.optimizers import AdagradOptions, AdamOptions, AmsgradOptions, RmspropOptions, SgdOptions
from khop.training.optimizer_settings import OptimizerSettings

# Arguments that the run sets, and that change how but not what torch computes.
_NO_OPTIONS = {"params", "lr", "weight_decay", "foreach", "fused", "capturable", "differentiable"}


def adam(options: AmsgradOptions, context: object) -> OptimizerSettings:
    """Make Adam."""
    return OptimizerSettings(torch.optim.Adam, _with_betas(options))


def adamw(options: AmsgradOptions, context: object) -> OptimizerSettings:
    """Make AdamW."""
    return OptimizerSettings(torch.optim.AdamW, _with_betas(options))


def nadam(options: AdamOptions, context: object) -> OptimizerSettings:
    """Make NAdam."""
    return OptimizerSettings(torch.optim.NAdam, _with_betas(options))


def radam(options: AdamOptions, context: object) -> OptimizerSettings:
    """Make RAdam."""
    return OptimizerSettings(torch.optim.RAdam, _with_betas(options))


def sgd(options: SgdOptions, context: object) -> OptimizerSettings:
    """Make stochastic gradient descent."""
    return OptimizerSettings(torch.optim.SGD, asdict(options))


def rmsprop(options: RmspropOptions, context: object) -> OptimizerSettings:
    """Make RMSprop."""
    return OptimizerSettings(torch.optim.RMSprop, asdict(options))


def adagrad(options: AdagradOptions, context: object) -> OptimizerSettings:
    """Make Adagrad."""
    return OptimizerSettings(torch.optim.Adagrad, asdict(options))


def component_of_class(found: object) -> Component | None:
    """Return the component of a class of optimizers, as torch.optim:Adamax; None for another object.

    Its options are the arguments with a default number, text, truth value or pair of numbers.
    """
    if not (isinstance(found, type) and issubclass(found, torch.optim.Optimizer)):
        return None
    options: list[Any] = [
        (name, tuple[float, ...] if isinstance(default, tuple) else type(default), field(default=default))
        for name, parameter in inspect.signature(found).parameters.items()
        if name not in _NO_OPTIONS and _is_plain(default := parameter.default)
    ]
    made: type = make_dataclass(f"{found.__name__}Options", options, frozen=True)
    return Component(made, _builder(found), lambda options, context: options)


def _builder(kind: type[torch.optim.Optimizer]) -> Callable[[Any, object], OptimizerSettings]:
    return lambda options, context: OptimizerSettings(kind, asdict(options))


def _is_plain(default: object) -> bool:
    if isinstance(default, tuple):
        return all(isinstance(number, float) for number in default)
    return isinstance(default, str | int | float)


def _with_betas(options: AdamOptions) -> dict[str, object]:
    values = asdict(options)
    return {"betas": (values.pop("beta1"), values.pop("beta2")), **values}
