"""The declarations of torch's optimizers for runs. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from khop.components import ImportedLater

Share = Annotated[float, Field(ge=0, lt=1)]
Least = Annotated[float, Field(ge=0)]


@dataclass(frozen=True)
class AdamOptions:
    """Options of optimizers with two moments."""

    beta1: Share = 0.9
    """Decay of the mean of gradients"""
    beta2: Share = 0.999
    """Decay of the mean of squared gradients"""
    eps: Least = 1e-8
    """Number added to the divisor"""


@dataclass(frozen=True)
class AmsgradOptions(AdamOptions):
    """Options of Adam."""

    amsgrad: bool = False
    """Divide by the largest mean of squared gradients so far"""


@dataclass(frozen=True)
class SgdOptions:
    """Options of gradient descent."""

    momentum: Share = 0.0
    """Momentum"""
    dampening: Least = 0.0
    """Dampening of the momentum"""
    nesterov: bool = False
    """Momentum of Nesterov"""


@dataclass(frozen=True)
class RmspropOptions:
    """Options of RMSprop."""

    alpha: Share = 0.99
    """Decay of the mean of squared gradients"""
    eps: Least = 1e-8
    """Number added to the divisor"""
    momentum: Share = 0.0
    """Momentum"""
    centered: bool = False
    """Divide by the deviation of gradients"""


@dataclass(frozen=True)
class AdagradOptions:
    """Options of Adagrad."""

    lr_decay: Least = 0.0
    """Decay of the learning rate"""
    initial_accumulator_value: Least = 0.0
    """First sum of squared gradients"""
    eps: Least = 1e-10
    """Number added to the divisor"""


class Adam:
    """Adam."""

    Options = AmsgradOptions
    build = ImportedLater("khop.config.build_optimizer:adam")


class AdamW:
    """Adam with decoupled weight decay."""

    Options = AmsgradOptions
    build = ImportedLater("khop.config.build_optimizer:adamw")


class NAdam:
    """Adam with momentum of Nesterov."""

    Options = AdamOptions
    build = ImportedLater("khop.config.build_optimizer:nadam")


class RAdam:
    """Rectified Adam."""

    Options = AdamOptions
    build = ImportedLater("khop.config.build_optimizer:radam")


class Sgd:
    """Stochastic gradient descent."""

    Options = SgdOptions
    build = ImportedLater("khop.config.build_optimizer:sgd")


class Rmsprop:
    """RMSprop."""

    Options = RmspropOptions
    build = ImportedLater("khop.config.build_optimizer:rmsprop")


class Adagrad:
    """Adagrad."""

    Options = AdagradOptions
    build = ImportedLater("khop.config.build_optimizer:adagrad")
