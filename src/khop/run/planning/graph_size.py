"""Size and degrees of an existing graph."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from khop.graph.atomic import Meter, ProgressCallback
from khop.graph.folder import GraphFolder, open_folder
from khop.graph.layout import is_partitioned
from khop.graph.partitions.parts_folder import open_parts
from khop.kernels.csc import Csc
from khop.run.planning.degrees import Degrees
from khop.run.planning.workload import GraphSize
from khop.schema import NodeType

_AT_ONCE = 1 << 20  # edges, or nodes
_EXACT = 16  # degrees up to which each has its own class; above, four classes for each doubling
_BINS = _EXACT + 4 * 64


def graph_size(path: str | os.PathLike[str], notice: ProgressCallback | None = None) -> GraphSize:
    """Count the nodes, edges and degrees of a graph folder, whole or partitioned: one pass over its edges.

    Counts are summed over types. Columns with a single number per node do not count as features. Needs
    8 bytes of memory per node.
    """
    counts, parts = _opened(path)
    bases, total = {}, 0
    for node_type, count in counts.items():
        bases[node_type] = total
        total += count
    edges = sum(part.num_edges(t) for part, _ in parts for t in part.schema.edge_types)
    meter = Meter(max(1, edges), notice)
    degree, ends = torch.zeros(total, dtype=torch.int32), torch.zeros(total, dtype=torch.int32)
    for part, firsts in parts:
        for edge_type in part.schema.edge_types:
            source, _, destination = edge_type
            csc = part.csc(edge_type)
            csc.check()
            begin = bases[destination] + firsts[destination]
            _add_degrees(degree[begin : begin + csc.num_rows], csc)
            of_sources = ends[bases[source] : bases[source] + counts[source]]
            for sources in csc.indices.split(_AT_ONCE):
                of_sources.index_add_(0, sources, torch.ones_like(sources, dtype=torch.int32))
                meter.at(f"counting degrees of {' '.join(edge_type)}", sources.numel())
    features = sum(_feature_bytes(part) for part, _ in parts)
    return GraphSize(total, edges, round(features / max(1, total)), _classes(degree.numpy(), ends.numpy()))


def _opened(
    path: str | os.PathLike[str],
) -> tuple[Mapping[NodeType, int], list[tuple[GraphFolder, Mapping[NodeType, int]]]]:
    """Return the nodes of each type, and each part with the first ids of its nodes."""
    if not is_partitioned(path):
        folder = open_folder(path)
        counts = {t: folder.num_nodes(t) for t in folder.schema.node_types}
        return counts, [(folder, dict.fromkeys(counts, 0))]
    parts = open_parts(path)
    offsets = parts.book.offsets
    firsts = [{t: offsets[t][number] for t in offsets} for number in parts.held]
    return {t: of[-1] for t, of in offsets.items()}, list(zip(parts.parts, firsts, strict=True))


def _add_degrees(degree: Tensor, csc: Csc) -> None:
    for first in range(0, csc.num_rows, _AT_ONCE):
        offsets = csc.indptr[first : first + _AT_ONCE + 1]
        degree[first : first + offsets.numel() - 1] += offsets.diff().int()


def _feature_bytes(part: GraphFolder) -> int:
    return sum(
        column.nbytes
        for t in part.schema.node_types
        for column in part.columns().get(t, {}).values()
        if column.dim() > 1
    )


def _classes(degree: npt.NDArray[np.int32], ends: npt.NDArray[np.int32]) -> Degrees:
    """Group nodes by both degrees; a class has the mean of its nodes' degrees."""
    sums = np.zeros((3, _BINS * _BINS))  # nodes, in-edges, out-edges
    for some_in, some_out in _chunks(degree, ends):
        place = _bins(some_in) * _BINS + _bins(some_out)
        for row, weights in enumerate((None, some_in, some_out)):
            sums[row] += np.bincount(place, weights, minlength=_BINS * _BINS)
    nodes, in_edges, out_edges = sums[:, sums[0] > 0]
    return Degrees(nodes / max(1, len(degree)), in_edges / nodes, out_edges / nodes)


def _chunks(*arrays: npt.NDArray[np.int32]) -> Iterator[list[npt.NDArray[np.int32]]]:
    for first in range(0, len(arrays[0]), _AT_ONCE):
        yield [array[first : first + _AT_ONCE] for array in arrays]


def _bins(degrees: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    above = _EXACT + (4 * np.log2(np.maximum(degrees, _EXACT) / _EXACT)).astype(np.int64)
    return np.where(degrees < _EXACT, degrees, above)
