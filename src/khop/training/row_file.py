"""Writing rows at their place in a file."""

from __future__ import annotations

import os

import torch
from torch import Tensor


def write_all(descriptor: int, rows: Tensor, offset: int) -> None:
    """Write all bytes of the rows at `offset`; OSError where there is no space for them."""
    # Written, not assigned through a mapping: a disk that is full would then end the process by a signal.
    content = rows.contiguous().view(-1).view(torch.uint8).numpy().data
    while content:
        written = os.pwrite(descriptor, content, offset)
        content, offset = content[written:], offset + written
