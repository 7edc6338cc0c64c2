"""Operands of draws on a GPU: edges, arrays of the rule, and weights that equal the CPU's bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from khop.draw import DrawKey, Frontier
from khop.graph.rule import Hop, reads_times
from khop.graph.store import CscGraph
from khop.kernels.csc import Csc
from khop.kernels.draw_request import DrawRequest, Kernel
from khop.kernels.edge_times import EdgeTimes
from khop.kernels.philox import SourceNumbers
from khop.kernels.segment import searched_rows
from khop.kernels.triton.sample_smallest import EdgeOrder, SourceOrder
from khop.kernels.triton.sample_uniform import most_picks as most_uniform
from khop.kernels.triton.sample_weighted import most_picks as most_weighted
from khop.kernels.triton.to_csr import CsrBuffers
from khop.sampling.rules.sum import DegreePerDraw
from khop.schema import EdgeType, NodeType


@dataclass(frozen=True, eq=False)
class TimeLimits:
    """Times of the edges of one type, and the edges that a limit allows."""

    times: EdgeTimes  # ascending within rows
    window: tuple[int, int] | None  # see Temporal
    is_latest: bool  # only the latest edges


@dataclass(frozen=True, eq=False)
class EdgeArrays:
    """The edges of one type on the device, and the arrays of the rule."""

    csc: Csc
    original_ids: Tensor | None  # int64 (rows), the ids that key draws; None: the rows
    replacement: bool
    sums: Tensor | None  # int64 (edges), running sums of weights; None: all edges weigh the same
    limits: TimeLimits | None
    order: SourceOrder | EdgeOrder | None = None  # a row gives its first edges in this order; None: it draws
    has_weights: bool = False  # an edge weighs degree / drawn

    def check_fanout(self, edge_type: EdgeType, hop: Hop) -> None:
        """Raise ValueError if the kernel of the draws has no room for as many picks of a node."""
        fanout = hop.fanouts.get(edge_type, 0)
        most = (most_uniform if self.sums is None else most_weighted)(self.replacement)
        if self.order is None and fanout > most:
            raise ValueError(
                f"fanout {fanout} for {edge_type}: kernels draw up to {most} different neighbors of a node "
                f'by {hop.rule}; give a smaller fanout, or leave the topology to the CPU, topology="host"'
            )


def edge_arrays(graph: CscGraph, edge_type: EdgeType, hop: Hop, device: torch.device) -> EdgeArrays:
    """Return the arrays for draws of a hop. Arrays that are on the device already are shared.

    ValueError if kernels cannot carry out the draws of the rule.
    """
    request = _request(graph, edge_type, hop)
    has_kernel = request.kernel in (Kernel.UNIFORM, Kernel.WEIGHTED, Kernel.SMALLEST)
    has_weights = _weighs_degrees(request)
    if not has_kernel or request.rows.ranges is not None or (request.weigh is not None and not has_weights):
        raise ValueError(f"{hop.rule}: no kernel draws by it on a device; sample on the CPU")
    order = _order(request, hop, device) if request.kernel is Kernel.SMALLEST else None
    limits = None
    if (given := request.limits) is not None:
        limits = TimeLimits(EdgeTimes(given.times.values.to(device)), given.window, given.is_latest)
    originals = graph.original_ids(edge_type[2])
    sums = request.sums if request.kernel is Kernel.WEIGHTED else None
    return EdgeArrays(
        _csc_on(graph.csc(edge_type), device),
        None if originals is None else originals.to(device),
        request.replacement,
        None if sums is None else sums.values.to(device),
        limits,
        order,
        has_weights,
    )


def stream_of(graph: CscGraph, edge_type: EdgeType, hop: Hop) -> int:
    """Return the counter word of a hop's draws."""
    return _request(graph, edge_type, hop).rows.stream


def _request(graph: CscGraph, edge_type: EdgeType, hop: Hop) -> DrawRequest:
    """Return the request for a frontier without nodes: its arrays are those of every draw of the hop."""
    none = torch.empty(0, dtype=torch.int64)
    frontier = Frontier(none, none if reads_times(hop.rule) else None)
    return hop.rule.plan(edge_type, frontier, hop, DrawKey(0), graph.draws.arrays)


def _weighs_degrees(request: DrawRequest) -> bool:
    """Return True if weights are degree / drawn, where both follow from the degree and the fanout."""
    weigh = request.weigh
    is_uniform = request.kernel is Kernel.UNIFORM and request.limits is None
    return is_uniform and isinstance(weigh, DegreePerDraw) and weigh.of_mean is None


def _order(request: DrawRequest, hop: Hop, device: torch.device) -> SourceOrder | EdgeOrder:
    """Return the order of a rule that takes the first edges of rows; the numbers are those of each batch."""
    assert request.order is not None
    if not isinstance(request.order, SourceNumbers):
        return EdgeOrder(request.order.to(device))
    if request.order.period > 1:
        raise ValueError(f"{hop.rule}: numbers of several steps have no kernel; use kappa=1, or the CPU")
    if request.has_parallel is not None:
        raise ValueError(
            f"{hop.rule}: some node has two edges from the same source, and kernels need different sources; "
            "sample on the CPU"
        )
    ids = request.source_ids
    return SourceOrder(request.rows.stream, None if ids is None else ids.to(device))


def _csc_on(csc: Csc, device: torch.device) -> Csc:
    if csc.indptr.device == device:
        return csc
    csc.check()  # kernels trust row pointers
    return Csc(csc.indptr.to(device), csc.indices.to(device), csc.num_sources, csc.home)


@dataclass(frozen=True)
class ElapsedTimes:
    """The time limits of rows minus the times of their edges; 0 for edges without a time."""

    times: Tensor  # int64 (edges of the type)
    until: Tensor  # int64 (rows)
    edges: CsrBuffers

    def run(self) -> None:
        """Write the elapsed times; the edges of all hops must be there. Nothing waits."""
        indptr, ids, out = self.edges.indptr, self.edges.edge_ids, self.edges.elapsed
        assert out is not None
        assert ids is not None
        if not out.numel() or not self.times.numel():
            return
        rows = searched_rows(indptr, out.numel())
        limits = self.until[rows.clamp(max=indptr.numel() - 2)]
        elapsed = limits - self.times[ids.clamp(0, self.times.numel() - 1)]
        out.copy_(elapsed.masked_fill(rows == indptr.numel() - 1, 0))


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
