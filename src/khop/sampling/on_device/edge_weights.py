"""Weights of drawn edges on the device, for layers that sum neighbors: the bits of the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from khop.kernels.edge_rows import searched_rows
from khop.kernels.triton.to_csr import CsrBuffers
from khop.sampling.on_device.edge_arrays import EdgeArrays
from khop.schema import NodeType

Degrees = Mapping[NodeType, Tensor]  # float64 (nodes of the graph), at least 1


@dataclass(frozen=True)
class RowFanout:
    """Fanout of the rows from `first` on."""

    first: Tensor  # int32 (1)
    fanout: int  # -1: all edges


@dataclass(frozen=True)
class Ends:
    """Nodes at the ends of edges, and the degrees by which weights are normalized; see `SymmetricSum`."""

    source_nodes: Tensor  # int64 (sources), by local id
    of_sources: Tensor | None  # float64 (nodes of the graph); None: they have no in-edges
    of_rows: Tensor  # float64 (nodes of the graph)


@dataclass(frozen=True)
class EdgeWeights:
    """The weights of the edges of some rows, degree / drawn as `Sum` states, 0 behind the last edge."""

    arrays: EdgeArrays
    nodes: Tensor  # int64 (rows), the node of each row
    fanouts: tuple[RowFanout, ...]  # of all rows, then of later ones
    edges: CsrBuffers
    ends: Ends | None  # None: weights are not normalized

    def run(self) -> None:
        """Write the weights; the edges of all hops must be there. Nothing waits."""
        indptr, indices, out = self.edges.indptr, self.edges.indices, self.edges.weights
        assert out is not None
        if not out.numel() or not self.nodes.numel():
            return
        rows = searched_rows(indptr, out.numel())
        is_unused = rows == self.nodes.numel()
        rows = rows.clamp_(max=self.nodes.numel() - 1)
        weights = self._by_row().index_select(0, rows)
        if self.ends is not None:
            product = self.ends.of_rows[self.nodes].index_select(0, rows)
            if self.ends.of_sources is not None:
                product = product * self.ends.of_sources[self.ends.source_nodes][indices]
            weights = (weights.double() / product.sqrt()).float()
        out.copy_(weights.masked_fill(is_unused, 0))

    def _by_row(self) -> Tensor:
        """Return the weight of the edges of each row, float32; of a row without edges, any number."""
        indptr = self.arrays.csc.indptr
        degrees = indptr[self.nodes + 1] - indptr[self.nodes]
        numbers = torch.arange(self.nodes.numel(), device=self.nodes.device)
        drawn = degrees
        for hop in self.fanouts:
            of_hop = degrees
            if hop.fanout >= 0 and self.arrays.replacement:
                of_hop = torch.full_like(degrees, hop.fanout)
            elif hop.fanout >= 0:
                of_hop = degrees.clamp(max=hop.fanout)
            drawn = torch.where(numbers >= hop.first, of_hop, drawn)
        # Edges that a batch leaves out after the draw count as drawn.
        return (degrees.double() / drawn).float()
