"""LABOR: draws of neighbors by random numbers that all rows of a batch share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Le
from torch import Tensor

from khop.arguments import checked_field, truth, whole_number
from khop.draw import DrawKey, Frontier, Neighbors, stream
from khop.graph.layout import edge_array
from khop.graph.needs import THREADS, Arrays, RuleArrays, RuleNeed, SourceIds, derived_name
from khop.graph.rule import FrontierField, Hop, RuleBase
from khop.kernels.draw_request import DrawRequest, Kernel
from khop.kernels.edge_arrays import parallel_rows
from khop.kernels.edge_times import HopRows
from khop.kernels.philox import SourceNumbers
from khop.kernels.sample_reference import sample_smallest_reference
from khop.schema import EdgeType

_MOST_KAPPA = (1 << 31) - 1


class ParallelRows(RuleNeed[Tensor]):
    """1 for each row in which edges share a source, uint8 (rows)."""

    def made(self, arrays: RuleArrays) -> Tensor | None:
        """Compute the rows; None if there is none."""
        csc, edge_type = arrays.edges[self.edge_type], self.edge_type
        found = arrays.derived.vector(
            derived_name(edge_type, "parallel_rows"),
            csc.num_rows,
            lambda: parallel_rows(csc, threads=THREADS),
            [edge_array(edge_type, name) for name in ("indptr", "indices")],
            "uint8",
        )
        return found if bool(found.any()) else None


@dataclass(frozen=True)
class Labor(RuleBase):
    """LABOR: uniform draws that prefer the same neighbors for all nodes, for fewer nodes per batch.

    This is LABOR-0 of Balin and Catalyurek (2023, arXiv 2210.13339) as sequential Poisson sampling: every
    source has one random number per hop, and each row takes its `fanout` sources with the smallest numbers. A
    row gives as many edges as with `Uniform()`, and a mean over draws estimates the mean over all neighbors
    without bias. A draw reads the whole row. Edge weights are ignored.

    Seeds with separate trees do not share nodes, so `trees="disjoint"` is not supported. `Temporal` needs
    trees, which all use the same numbers.

    Args:
        layer_dependent: Use the same numbers in all hops: even fewer nodes, but outputs of two or more
            layers are biased. Default False.
        kappa: Number of steps of an epoch for which a node keeps its number; one node in `kappa` changes
            at each step (arXiv 2310.12403). Above 1, successive batches share nodes, which helps caches:
            each batch alone is unbiased, but successive batches are not independent. Default 1.
    Raises:
        ValueError: `layer_dependent` is not a boolean, or `kappa` is out of range.
    Example:
        >>> graph, seeds = khop.open_graph("debian"), {"package": range(500)}
        >>> def nodes(rule):
        ...     sampler = khop.NeighborSampler(graph, [5, 5], rule=rule)
        ...     return len(khop.Loader(sampler, seeds, batch_size=500).batch(0, 0).input_nodes)
        >>> nodes(khop.Labor()) < nodes(khop.Uniform())
        True
    """

    kernel: ClassVar[Kernel] = Kernel.SMALLEST
    layer_dependent: bool = False
    """Use the same random numbers in all hops of LABOR. Batches then have fewer nodes, but outputs of models
    with several layers are biased"""
    kappa: Annotated[int, Ge(1), Le(_MOST_KAPPA)] = 1
    """Number of steps for which a node keeps its random number in LABOR. Above 1, successive batches share
    nodes, which helps caches, but batches are not independent"""

    def __post_init__(self) -> None:
        checked_field(self, "layer_dependent", truth)
        checked_field(self, "kappa", whole_number, 1, _MOST_KAPPA)

    @property
    def frontier_fields(self) -> frozenset[FrontierField]:
        """None: draws do not depend on trees."""
        return frozenset()

    def needs(self, edge_type: EdgeType) -> tuple[RuleNeed[Any], ...]:
        """Return the original ids of sources, and the rows in which edges share a source."""
        return (SourceIds(edge_type), ParallelRows(edge_type))

    def plan(
        self, edge_type: EdgeType, frontier: Frontier, hop: Hop, key: DrawKey, arrays: Arrays
    ) -> DrawRequest:
        """Return the draw of an edge type's rows by the numbers of their sources."""
        source = edge_type[0]
        word = stream(0 if self.layer_dependent else hop.number, (source,))
        return DrawRequest(
            arrays.edges[edge_type],
            HopRows(frontier.nodes, key, word),
            hop.fanouts[edge_type],
            self.reference,
            self.kernel,
            source_ids=arrays[SourceIds(edge_type)] if source in arrays.original_ids else None,
            order=SourceNumbers.of(key, word, self.kappa),
            has_parallel=arrays[ParallelRows(edge_type)],
        )

    def reference(self, request: DrawRequest) -> Neighbors:
        """Carry out a draw in torch."""
        return sample_smallest_reference(request)

    def exact_weights(self, edge_type: EdgeType, arrays: Arrays) -> None:
        """Return None: a mean over draws estimates the mean over all edges of a row."""
