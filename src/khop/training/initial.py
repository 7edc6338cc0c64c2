"""The weights that training starts from."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

Model = TypeVar("Model", bound=nn.Module)


def seeded(seed: int, make: Callable[[], Model]) -> Model:
    """What `make` gives when torch's global generator starts at `seed`; afterwards it is as it was.

    Modules draw their first weights from that generator and take no other. Make the model on the CPU: then
    the weights are the same whatever device it moves to.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()
