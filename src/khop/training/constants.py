"""Numbers of a task as tensors on a device, copied there once."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

_KEPT = 64  # tensors: a process has a few tasks


@lru_cache(maxsize=_KEPT)
def constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return some numbers as a shared tensor (values); do not change it.

    The first call copies them to the device and waits. Later calls return the same tensor: recorded steps can
    read it, and no step waits.
    """
    return torch.tensor(values, dtype=dtype, device=device)
