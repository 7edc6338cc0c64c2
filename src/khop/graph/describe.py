"""Summary of a graph folder: counts, degrees, columns, splits and sizes on disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from khop.errors import REMEDY
from khop.graph.atomic import Meter, ProgressCallback
from khop.graph.layout import edge_array, edge_column, node_column, node_split
from khop.graph.manifest import EdgeEntry, Manifest, NodeEntry, open_manifest
from khop.graph.npy import ArrayEntry, file_checksum, map_numpy
from khop.graph.snapshots import current_folder
from khop.schema import ColumnSpec, EdgeType, NodeType

Counts = npt.NDArray[np.integer[Any]]
_CHUNK_ROWS = 1 << 20


@dataclass(frozen=True)
class Bucket:
    """Number of destinations with a degree in one range; ranges double: 0, 1, 2-3, 4-7, ..."""

    low: int
    high: int
    nodes: int


@dataclass(frozen=True)
class DegreeSummary:
    """In-edges per destination, of one edge type."""

    minimum: int
    median: int
    p90: int
    p99: int
    maximum: int
    mean: float
    isolated: int  # destinations without an in-edge of this type
    histogram: tuple[Bucket, ...]


@dataclass(frozen=True, eq=False)
class DegreeCounts:
    """Number of destinations by in-degree. Its size does not depend on the number of destinations."""

    degrees: Counts  # int64, ascending
    nodes: Counts  # int64, the destinations with each degree

    @classmethod
    def of(cls, chunks: Iterable[Counts]) -> DegreeCounts:
        """Count the degrees of all chunks, which must not be negative."""
        degrees, nodes = np.empty(0, np.int64), np.empty(0, np.int64)
        for chunk in chunks:
            found, times = _counted(chunk)
            degrees, place = np.unique(np.concatenate([degrees, found]), return_inverse=True)
            both = np.concatenate([nodes, times])
            nodes = np.zeros(len(degrees), np.int64)
            np.add.at(nodes, place, both)
        return cls(degrees, nodes)

    @property
    def edges(self) -> int:
        """The sum of all degrees."""
        return int(self.degrees @ self.nodes)


def _counted(chunk: Counts) -> tuple[Counts, Counts]:
    if len(chunk) and int(chunk.max()) <= len(chunk):
        times = np.bincount(chunk)
        degrees = np.flatnonzero(times)
        return degrees, times[degrees]
    return np.unique(chunk, return_counts=True)


@dataclass(frozen=True)
class ColumnSummary:
    """Name, dtype, shape and file size of one column."""

    name: str
    dtype: str
    shape: tuple[int, ...]  # of one row
    num_classes: int | None
    num_bytes: int
    sparse_width: int | None = None  # of a sparse column: width of a row


@dataclass(frozen=True)
class NodeSummary:
    """Count, columns and splits of one node type."""

    type: NodeType
    count: int
    columns: tuple[ColumnSummary, ...]
    splits: Mapping[str, int]  # name -> nodes
    num_bytes: int


@dataclass(frozen=True)
class EdgeSummary:
    """Count, degrees and columns of one edge type."""

    type: EdgeType
    count: int
    degrees: DegreeSummary
    index_dtype: str
    edge_id: bool
    reverse_of: EdgeType | None
    columns: tuple[ColumnSummary, ...]
    num_bytes: int


@dataclass(frozen=True)
class FolderSummary:
    """Summary of a whole graph folder."""

    path: str
    version: int
    fingerprint: str
    num_bytes: int
    nodes: tuple[NodeSummary, ...]
    edges: tuple[EdgeSummary, ...]


def describe_folder(path: str | os.PathLike[str], progress: ProgressCallback | None = None) -> FolderSummary:
    """Summarize a graph folder. Reads only the offsets of each edge type, so degrees are in-degrees.

    Each file is read twice. ValueError names a damaged file of offsets, and the row if the values show it.
    """
    folder = current_folder(Path(path))
    manifest, fingerprint, _ = open_manifest(folder)
    files = [edge_array(edge.type, "indptr") for edge in manifest.edges]
    meter = Meter(2 * sum(manifest.arrays[file].bytes for file in files), progress)

    def degrees(edge_type: EdgeType) -> DegreeCounts:
        file = edge_array(edge_type, "indptr")
        indptr, count = map_numpy(folder / file, manifest.arrays[file]), manifest.edge(edge_type).count
        return checked_degrees(_differences(indptr), count, folder / file, manifest.arrays[file], meter)

    nodes, edges = describe(manifest, degrees)
    num_bytes = sum(entry.bytes for entry in manifest.arrays.values())
    return FolderSummary(str(path), manifest.version, fingerprint, num_bytes, nodes, edges)


def checked_degrees(
    chunks: Iterable[Counts], edges: int, file: Path, entry: ArrayEntry, meter: Meter
) -> DegreeCounts:
    """Count degrees in chunks; ValueError if the file is damaged.

    Adds twice the bytes of the file to the meter.
    """
    what = f"reading {file.parent.name}/{file.name}"
    counts = DegreeCounts.of(_metered(_not_negative(chunks, file), what, entry.bytes, meter))
    if counts.edges != edges:
        raise ValueError(f"{file}: its rows have {counts.edges:,} edges of {edges:,}; {REMEDY}")
    if file_checksum(file, partial(meter.at, what)) != entry.sha256:
        raise ValueError(f"{file}: checksum differs; {REMEDY}")
    return counts


def _metered(chunks: Iterable[Counts], what: str, num_bytes: int, meter: Meter) -> Iterator[Counts]:
    """Yield the chunks, and add `num_bytes` to the meter meanwhile."""
    end = meter.done + num_bytes
    meter.at(what)
    for chunk in chunks:
        yield chunk
        meter.at(what, chunk.nbytes)
    meter.at(what, end - meter.done)


def _not_negative(chunks: Iterable[Counts], file: Path) -> Iterator[Counts]:
    first = 0
    for degrees in chunks:
        negative = np.flatnonzero(degrees < 0)
        if negative.size:
            row = int(negative[0])
            raise ValueError(f"{file}: row {first + row} has {int(degrees[row])} edges; {REMEDY}")
        yield degrees
        first += len(degrees)


def _differences(indptr: Counts) -> Iterator[Counts]:
    for begin, end in pairwise([*range(0, len(indptr) - 1, _CHUNK_ROWS), len(indptr) - 1]):
        yield np.diff(indptr[begin : end + 1])


def describe(
    manifest: Manifest, degrees: Callable[[EdgeType], DegreeCounts]
) -> tuple[tuple[NodeSummary, ...], tuple[EdgeSummary, ...]]:
    """Return summaries of the node types and edge types; `degrees` counts the in-degrees of an edge type."""
    nodes = tuple(_node_summary(manifest, node) for node in manifest.nodes)
    edges = tuple(_edge_summary(manifest, edge, degrees(edge.type)) for edge in manifest.edges)
    return nodes, edges


def degrees_of(counts: DegreeCounts) -> DegreeSummary:
    """Return quantiles (each is the degree of some node) and a histogram of in-degrees."""
    if len(counts.degrees) == 0:
        return DegreeSummary(0, 0, 0, 0, 0, 0.0, 0, ())
    total, bits = int(counts.nodes.sum()), np.frexp(counts.degrees)[1]  # of the degree: 0, 1, 2-3, 4-7, ...
    nodes_by_bits = np.zeros(int(bits.max()) + 1, np.int64)
    np.add.at(nodes_by_bits, bits, counts.nodes)
    histogram = tuple(
        Bucket(1 << bits >> 1, max(0, (1 << bits) - 1), nodes)
        for bits, nodes in enumerate(nodes_by_bits.tolist())
    )
    # The smallest degree that this share of the nodes does not exceed.
    ranks = [max(1, -(-total * percent // 100)) for percent in (0, 50, 90, 99, 100)]
    at = np.searchsorted(np.cumsum(counts.nodes), ranks)
    minimum, median, p90, p99, maximum = counts.degrees[at].tolist()
    mean, isolated = counts.edges / total, histogram[0].nodes
    return DegreeSummary(minimum, median, p90, p99, maximum, mean, isolated, histogram)


def _node_summary(manifest: Manifest, node: NodeEntry) -> NodeSummary:
    arrays = manifest.arrays
    splits = {name: arrays[node_split(node.type, name)] for name in node.splits}
    files = {name: node_column(node.type, name) for name in node.columns}
    columns = _columns(manifest, manifest.schema().columns[node.type], files)
    return NodeSummary(
        type=node.type,
        count=node.count,
        columns=columns,
        splits={name: entry.shape[0] for name, entry in splits.items()},
        num_bytes=sum(entry.bytes for entry in splits.values()) + sum(column.num_bytes for column in columns),
    )


def _edge_summary(manifest: Manifest, edge: EdgeEntry, degrees: DegreeCounts) -> EdgeSummary:
    arrays = manifest.arrays
    files = {name: edge_column(edge.type, name) for name in edge.columns}
    columns = _columns(manifest, manifest.schema().columns[edge.type], files)
    names = ("indptr", "indices", "edge_id") if edge.edge_id else ("indptr", "indices")
    structure = [arrays[edge_array(edge.type, name)] for name in names]
    return EdgeSummary(
        type=edge.type,
        count=edge.count,
        degrees=degrees_of(degrees),
        index_dtype=arrays[edge_array(edge.type, "indices")].dtype,
        edge_id=edge.edge_id,
        reverse_of=edge.reverse_of,
        columns=columns,
        num_bytes=sum(entry.bytes for entry in structure) + sum(column.num_bytes for column in columns),
    )


def _columns(
    manifest: Manifest, specs: Mapping[str, ColumnSpec], files: Mapping[str, str]
) -> tuple[ColumnSummary, ...]:
    return tuple(
        ColumnSummary(
            name,
            spec.dtype,
            spec.shape,
            spec.num_classes,
            manifest.arrays[files[name]].bytes,
            spec.sparse_width,
        )
        for name, spec in specs.items()
    )
