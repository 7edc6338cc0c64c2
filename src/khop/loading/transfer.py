"""Transfer of a batch from host memory to the model's device."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from khop.batch import HasTensors

Value = TypeVar("Value", bound=HasTensors)


def device_of(given: object) -> torch.device:
    """Return the device; ValueError if torch does not know it or this machine does not have it."""
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


def stage(batch: Value, device: torch.device) -> Value:
    """Copy a batch to pinned memory on a worker, if that speeds up the copy to the device."""
    return batch.map(Tensor.pin_memory) if device.type == "cuda" else batch


def place(batch: Value, device: torch.device) -> Value:
    """Copy a batch to its device on the consumer's thread, in the order of its current stream."""
    if device.type == "cpu":
        return batch
    return batch.map(lambda tensor: tensor.to(device, non_blocking=True))
