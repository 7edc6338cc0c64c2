"""Time2Vec (Kazemi et al. 2019): features of times, with learned frequencies."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from khop.arguments import LARGEST_WIDTH, whole_number

_LONGEST = 1e9  # the period of the slowest sine at first: 32 years of seconds


class Time2Vec(nn.Module):
    """Features of times, from "Time2Vec: Learning a Vector Representation of Time" (2019).

    The first feature is linear in the time, the others are sines. Frequencies and phases are learned; at
    first, periods are spread evenly in the logarithm from 1 to 10^9 time units.

    Args:
        width: Number of features, at least 1.
    Raises:
        ValueError: The width is below 1.
    Example:
        >>> encode = khop.models.Time2Vec(8)
        >>> encode(torch.tensor([0, 60, 3600])).shape
        torch.Size([3, 8])
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = whole_number("width", width, 1, LARGEST_WIDTH)
        periods = torch.logspace(0, math.log10(_LONGEST), width - 1, dtype=torch.float64)
        frequencies = torch.cat([torch.tensor([1 / _LONGEST]), 2 * math.pi / periods])
        self.frequencies = nn.Parameter(frequencies.float())
        self.phases = nn.Parameter(torch.zeros(width))

    def forward(self, times: Tensor) -> Tensor:
        """Return (times, width): the features of each time.

        Args:
            times: Times or time differences of any dtype, (times).
        """
        # float32 has no unit of a time in seconds left: sines are taken of float64.
        angles = times.double()[:, None] * self.frequencies.double() + self.phases.double()
        features = torch.cat([angles[:, :1], angles[:, 1:].sin()], dim=1)
        return features.to(self.frequencies.dtype)
