"""Size and degrees of an existing graph."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from khop.graph.atomic import Meter, ProgressCallback
from khop.graph.folder import Folder, GraphFolder, open_folder
from khop.graph.layout import is_partitioned
from khop.graph.partitions.parts_folder import open_parts
from khop.kernels.csc import Csc
from khop.run.planning.degrees import Degrees
from khop.run.planning.workload import GraphSize
from khop.schema import NodeType

_AT_ONCE = 1 << 20  # edges, or nodes
_EXACT = 16  # degrees up to which each has its own class; above, four classes for each doubling
_BINS = _EXACT + 4 * 64


def graph_size(
    path: str | os.PathLike[str], fanouts: Sequence[int], notice: ProgressCallback | None = None
) -> GraphSize:
    """Count the nodes, edges and degrees of a graph folder, whole or partitioned: one pass over its edges.

    `fanouts` are those of the plan. Seeds are of the node types that have a split "train"; without this
    split, of all. Columns with a single number per node do not count as features. Needs 8 bytes of memory
    per node.
    """
    counts, parts, seeds = _opened(path)
    ends_of = np.cumsum([0, *counts.values()])
    span = {t: slice(*map(int, ends_of[at : at + 2])) for at, t in enumerate(counts)}
    total = int(ends_of[-1])
    edges = sum(part.num_edges(t) for part, _ in parts for t in part.schema.edge_types)
    meter = Meter(max(1, edges), notice)
    degree, ends = torch.zeros(total, dtype=torch.int32), torch.zeros(total, dtype=torch.int32)
    for part, firsts in parts:
        for edge_type in part.schema.edge_types:
            source, _, destination = edge_type
            csc = part.csc(edge_type)
            csc.check()
            for first, some in _degrees(csc, span[destination].start + firsts[destination]):
                degree[first : first + some.numel()] += some.int()
            for sources in csc.indices.split(_AT_ONCE):
                ends[span[source]].index_add_(0, sources, torch.ones_like(sources, dtype=torch.int32))
                meter.at(f"counting degrees of {' '.join(edge_type)}", sources.numel())
    return GraphSize(
        total, edges, round(sum(_feature_bytes(part) for part, _ in parts) / max(1, total)),
        _classes(span, parts, seeds, fanouts, degree.numpy(), ends.numpy()),
        round(sum(_numbers(part) for part, _ in parts) / max(1, total)),
        sum(_edge_bytes(part) for part, _ in parts) / max(1, edges),
    )  # fmt: skip


_Parts = list[tuple[GraphFolder, Mapping[NodeType, int]]]


def _opened(path: str | os.PathLike[str]) -> tuple[Mapping[NodeType, int], _Parts, Set[NodeType]]:
    """Return the nodes of each type, each part with the first ids of its nodes, and the types of seeds."""
    if not is_partitioned(path):
        folder = open_folder(path)
        counts = {t: folder.num_nodes(t) for t in folder.schema.node_types}
        return counts, [(folder, dict.fromkeys(counts, 0))], _seed_types(folder)
    parts = open_parts(path)
    offsets = parts.book.offsets
    firsts = [{t: offsets[t][number] for t in offsets} for number in parts.held]
    counts = {t: of[-1] for t, of in offsets.items()}
    return counts, list(zip(parts.parts, firsts, strict=True)), _seed_types(parts)


def _seed_types(folder: Folder) -> Set[NodeType]:
    splits = folder.split("train") if "train" in folder.split_names else {}
    return {t for t, ids in splits.items() if ids.numel()} or set(folder.schema.node_types)


def _degrees(csc: Csc, begin: int) -> Iterator[tuple[int, Tensor]]:
    """Yield the in-degrees of a few rows at a time, with the position of the first one after `begin`."""
    for first in range(0, csc.num_rows, _AT_ONCE):
        yield begin + first, csc.indptr[first : first + _AT_ONCE + 1].diff()


def _feature_bytes(part: GraphFolder) -> int:
    return sum(column.nbytes for column in _features(part))


def _numbers(part: GraphFolder) -> int:
    return sum(column.numel() for column in _features(part))


def _features(part: GraphFolder) -> Iterator[Tensor]:
    columns = part.columns()
    for node_type in part.schema.node_types:
        yield from (column for column in columns.get(node_type, {}).values() if column.dim() > 1)


def _edge_bytes(part: GraphFolder) -> int:
    """Return the bytes of all arrays of edges except their sources."""
    files = {file for edge in part.manifest.edges for file in edge.arrays(0)}
    return sum(
        part.arrays[file].data_bytes for file in files if Path(file).name not in ("indptr.npy", "indices.npy")
    )


def _classes(
    span: Mapping[NodeType, slice],
    parts: _Parts,
    seeds: Set[NodeType],
    fanouts: Sequence[int],
    degree: npt.NDArray[np.int32],
    ends: npt.NDArray[np.int32],
) -> Degrees:
    """Group nodes by type and both degrees; a class has means over its nodes. Changes `degree`."""
    types: list[int] = []
    for at, of_type in enumerate(span.values()):
        for some_in, some_out in _chunks(degree[of_type], ends[of_type]):
            some_in[:] = _bins(some_in) * _BINS + _bins(some_out)
        there = np.zeros(_BINS * _BINS, dtype=np.bool_)
        for (some_in,) in _chunks(degree[of_type]):
            there[some_in] = True
        numbers = len(types) + np.cumsum(there) - 1
        for (some_in,) in _chunks(degree[of_type]):
            some_in[:] = numbers[some_in]
        types += [at] * int(there.sum())
    nodes, out_edges = np.zeros(len(types)), np.zeros(len(types))
    for place, some_out in _chunks(degree, ends):
        nodes += np.bincount(place, minlength=len(types))
        out_edges += np.bincount(place, some_out, minlength=len(types))
    limits = {fanout: fanout for fanout in fanouts if fanout >= 0} | {-1: np.iinfo(np.int64).max}
    drawn = {fanout: np.zeros((len(span), len(types))) for fanout in limits}
    of_source = {t: at for at, t in enumerate(span)}
    for part, firsts in parts:
        for source, relation, destination in part.schema.edge_types:
            csc = part.csc((source, relation, destination))
            for first, some in _degrees(csc, span[destination].start + firsts[destination]):
                place = degree[first : first + some.numel()]
                for fanout, limit in limits.items():
                    few = np.bincount(place, some.clamp(max=limit).numpy(), minlength=len(types))
                    drawn[fanout][of_source[source]] += few / nodes
    is_seed = np.array([t in seeds for t in span], dtype=np.bool_)[types]
    total = drawn.pop(-1)
    return Degrees(nodes / max(1, len(degree)), total, out_edges / nodes, np.array(types), is_seed, drawn)


def _chunks(*arrays: npt.NDArray[np.int32]) -> Iterator[list[npt.NDArray[np.int32]]]:
    for first in range(0, len(arrays[0]), _AT_ONCE):
        yield [array[first : first + _AT_ONCE] for array in arrays]


def _bins(degrees: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    above = _EXACT + (4 * np.log2(np.maximum(degrees, _EXACT) / _EXACT)).astype(np.int64)
    return np.where(degrees < _EXACT, degrees, above)
