"""Arrays of a graph that draws on the device read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from khop.graph.csc_graph import CscGraph
from khop.kernels.csc import Csc
from khop.rules.rule import NeedKind, Rule
from khop.schema import EdgeType


@dataclass(frozen=True, eq=False)
class EdgeArrays:
    """The edges of one type on the device, and the arrays of the rule."""

    csc: Csc
    original_ids: Tensor | None  # int64 (rows), the ids that key draws; None: the rows
    sums: Tensor | None  # int64 (edges), running sums of weights; None: all edges weigh the same
    times: Tensor | None  # int64 (edges), ascending within rows; None: no limits


def edge_arrays(
    graph: CscGraph, edge_types: Sequence[EdgeType], rule: Rule, device: torch.device
) -> dict[EdgeType, EdgeArrays]:
    """Return the arrays of some edge types on a device. Arrays that are there already are shared."""
    found = {}
    for edge_type in edge_types:
        sums = times = None
        for need in rule.needs(edge_type):
            if need.kind is NeedKind.WEIGHT_SUMS:
                sums = graph.rule_arrays.weight_sums(edge_type, need.column)
            elif need.kind is NeedKind.TIMES:
                times = graph.rule_arrays.times(edge_type, need.column)
        found[edge_type] = EdgeArrays(
            _csc_on(graph.csc(edge_type), device),
            _on(graph.original_ids.get(edge_type[2]), device),
            _on(None if sums is None else sums.values, device),
            _on(None if times is None else times.values, device),
        )
    return found


def _csc_on(csc: Csc, device: torch.device) -> Csc:
    if csc.indptr.device == device:
        return csc
    csc.check()  # kernels trust row pointers
    return Csc(csc.indptr.to(device), csc.indices.to(device), csc.num_sources, csc.home)


def _on(tensor: Tensor | None, device: torch.device) -> Tensor | None:
    return None if tensor is None else tensor.to(device)
