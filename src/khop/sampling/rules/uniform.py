"""Uniform sampling rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from khop.arguments import checked_field, truth
from khop.draw import Neighbors
from khop.graph.needs import Arrays
from khop.graph.rule import RuleBase
from khop.kernels.draw_request import DrawRequest, Kernel
from khop.kernels.sample_reference import sample_uniform_reference
from khop.schema import EdgeType


@dataclass(frozen=True)
class Uniform(RuleBase):
    """Rule that samples every neighbor with equal probability.

    Args:
        replacement: Sample with replacement; default False.
    Raises:
        ValueError: `replacement` is not a boolean.
    Example:
        >>> graph = khop.open_graph("debian")
        >>> sampler = khop.NeighborSampler(graph, [10, 5], rule=khop.Uniform(replacement=True))
    """

    kernel: ClassVar[Kernel] = Kernel.UNIFORM
    replacement: bool = False
    """Sample neighbors with replacement"""

    def __post_init__(self) -> None:
        checked_field(self, "replacement", truth)

    @property
    def is_uniform(self) -> bool:
        """True: every edge of a row is equally likely."""
        return True

    def reference(self, request: DrawRequest) -> Neighbors:
        """Carry out a draw in torch."""
        return sample_uniform_reference(request)

    def exact_weights(self, edge_type: EdgeType, arrays: Arrays) -> None:
        """Return None: a mean over draws estimates the mean over all edges of a row."""


UNIFORM = Uniform()  # the rule of a sampler that names none
