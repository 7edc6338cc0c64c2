"""Initial weights of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

Model = TypeVar("Model", bound=nn.Module)


def seeded(seed: int, make: Callable[[], Model]) -> Model:
    """Call `make` with torch's global generator seeded by `seed`; the generator is restored afterwards.

    Modules draw their initial weights from that generator and from no other. Make the model on the CPU: the
    weights are then independent of the device that it moves to.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()
