"""A batch from the memory where workers made it to the device where the model is."""

from __future__ import annotations

import torch
from torch import Tensor

from khop.batch import Batch


def device_of(given: object) -> torch.device:
    """The device; ValueError where torch knows none of that name, or this machine has none."""
    try:
        device = torch.device(given)  # type: ignore[call-overload]
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f'device {given!r}: must be a device of torch, as "cpu", "cuda" or "cuda:1"'
        ) from error
    assert isinstance(device, torch.device)
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if count <= (device.index or 0):
            there = f"has {count}" if count else "finds none"
            raise ValueError(
                f'device {given!r}: torch {there} of CUDA\'s GPUs here; give device="cpu", or install '
                "torch with CUDA where there is a GPU"
            )
    return device


def stage(batch: Batch, device: torch.device) -> Batch:
    """What a worker does ahead: into pinned memory where the device copies faster from it; else nothing."""
    return batch.map(Tensor.pin_memory) if device.type == "cuda" else batch


def place(batch: Batch, device: torch.device) -> Batch:
    """What the consumer does: the batch on its device, copied in the order of the consumer's own stream."""
    return batch if device.type == "cpu" else batch.to(device)
