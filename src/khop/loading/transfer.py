"""A batch from the memory where workers made it to the device where the model is."""

from __future__ import annotations

import torch
from torch import Tensor

from khop.batch import Batch


def stage(batch: Batch, device: torch.device) -> Batch:
    """What a worker does ahead: into pinned memory where the device copies faster from it; else nothing."""
    return batch.map(Tensor.pin_memory) if device.type == "cuda" else batch


def place(batch: Batch, device: torch.device) -> Batch:
    """What the consumer does: the batch on its device, copied in the order of the consumer's own stream."""
    return batch if device.type == "cpu" else batch.to(device)
