"""Uniform draws of neighbors."""

from __future__ import annotations

from dataclasses import dataclass

from khop.arguments import truth
from khop.draw import DrawKey, Frontier, Neighbors
from khop.kernels.draw_request import DrawRequest, Kernel
from khop.kernels.sample_uniform import sample_uniform_reference
from khop.rules.rule import DrawArrays, Hop, RuleBase, rows_of
from khop.schema import EdgeType, Schema


@dataclass(frozen=True)
class Uniform(RuleBase):
    """Every neighbor is equally likely."""

    replacement: bool = False

    def __post_init__(self) -> None:
        truth("replacement", self.replacement)

    @property
    def is_uniform(self) -> bool:
        """True: every edge of a row is equally likely."""
        return True

    def check(self, schema: Schema) -> None:
        """Return: every graph fits."""

    def plan(
        self, edge_type: EdgeType, frontier: Frontier, hop: Hop, key: DrawKey, arrays: DrawArrays
    ) -> DrawRequest:
        """Return the draw of an edge type's rows, by the uniform kernel."""
        return DrawRequest(
            arrays.edges[edge_type],
            rows_of(edge_type, frontier, hop, key, arrays),
            hop.fanouts[edge_type],
            sample_uniform_reference,
            Kernel.UNIFORM,
            self.replacement,
        )

    def reference(self, request: DrawRequest) -> Neighbors:
        """Carry out a draw in torch."""
        return sample_uniform_reference(request)

    def exact_weights(self, edge_type: EdgeType, arrays: DrawArrays) -> None:
        """Return None: a mean over draws estimates the mean over all edges of a row."""
