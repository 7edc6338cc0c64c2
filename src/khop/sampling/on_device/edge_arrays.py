"""Operands of draws on the device: the edges of a type, and the arrays of the rule."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from khop.draw import DrawKey, Frontier
from khop.graph.csc_graph import CscGraph
from khop.kernels.csc import Csc
from khop.kernels.draw_request import Kernel
from khop.kernels.edge_times import EdgeTimes
from khop.rules.rule import Hop, reads_times
from khop.schema import EdgeType


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


def edge_arrays(graph: CscGraph, edge_type: EdgeType, hop: Hop, device: torch.device) -> EdgeArrays:
    """Return the arrays for draws of a hop. Arrays that are on the device already are shared.

    ValueError if kernels cannot carry out the draws of the rule.
    """
    none = torch.empty(0, dtype=torch.int64)
    frontier = Frontier(none, none if reads_times(hop.rule) else None)
    request = hop.rule.plan(edge_type, frontier, hop, DrawKey(0), graph.draws.arrays)
    has_kernel = request.kernel in (Kernel.UNIFORM, Kernel.WEIGHTED)
    if not has_kernel or request.weigh is not None or request.rows.ranges is not None:
        raise ValueError(f"{hop.rule}: no kernel draws by it on a device; sample on the CPU")
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
    )


def _csc_on(csc: Csc, device: torch.device) -> Csc:
    if csc.indptr.device == device:
        return csc
    csc.check()  # kernels trust row pointers
    return Csc(csc.indptr.to(device), csc.indices.to(device), csc.num_sources, csc.home)
