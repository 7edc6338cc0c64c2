"""Summary of a graph folder: counts, degrees, columns, splits, sizes on disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from khop.errors import REMEDY
from khop.graph.layout import edge_array, edge_column, node_column, node_split
from khop.graph.manifest import EdgeEntry, Manifest, NodeEntry, open_manifest
from khop.graph.npy import ArrayEntry, file_checksum, map_numpy
from khop.schema import ColumnSpec, EdgeType, NodeType

Counts = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Bucket:
    """Number of destinations with a degree in one range; ranges double: 0, 1, 2-3, 4-7, ..."""

    low: int
    high: int
    nodes: int


@dataclass(frozen=True)
class Degrees:
    """In-edges per destination, of one edge type."""

    minimum: int
    median: int
    p90: int
    p99: int
    maximum: int
    mean: float
    isolated: int  # destinations without an in-edge of this type
    histogram: tuple[Bucket, ...]


@dataclass(frozen=True)
class Column:
    """Name, dtype, shape and file size of one column."""

    name: str
    dtype: str
    shape: tuple[int, ...]  # of one row
    num_classes: int | None
    num_bytes: int


@dataclass(frozen=True)
class NodeSummary:
    """Count, columns and splits of one node type."""

    type: NodeType
    count: int
    columns: tuple[Column, ...]
    splits: Mapping[str, int]  # name -> nodes
    num_bytes: int


@dataclass(frozen=True)
class EdgeSummary:
    """Count, degrees and columns of one edge type."""

    type: EdgeType
    count: int
    degrees: Degrees
    index_dtype: str
    edge_id: bool
    reverse_of: EdgeType | None
    columns: tuple[Column, ...]
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


def describe_folder(path: str | os.PathLike[str]) -> FolderSummary:
    """Summarize a graph folder. Reads the offsets of each edge type and no other data; in-degrees only.

    ValueError names a damaged file of offsets, and the row if the values show it.
    """
    folder = Path(path)
    manifest, fingerprint, _ = open_manifest(folder)

    def degrees(edge_type: EdgeType) -> Counts:
        file = edge_array(edge_type, "indptr")
        found: Counts = np.diff(map_numpy(folder / file, manifest.arrays[file]))
        check_degrees(found, manifest.edge(edge_type).count, folder / file, manifest.arrays[file])
        return found

    nodes, edges = describe(manifest, degrees)
    num_bytes = sum(entry.bytes for entry in manifest.arrays.values())
    return FolderSummary(str(folder), manifest.version, fingerprint, num_bytes, nodes, edges)


def check_degrees(degrees: Counts, edges: int, file: Path, entry: ArrayEntry) -> None:
    """Raise ValueError if the degrees differ from the in-degrees that were written to the file."""
    negative = np.flatnonzero(degrees < 0)
    if negative.size:
        row = int(negative[0])
        raise ValueError(f"{file}: row {row} has {int(degrees[row])} edges; {REMEDY}")
    total = int(degrees.sum(dtype=np.int64))
    if total != edges:
        raise ValueError(f"{file}: its rows have {total:,} edges of {edges:,}; {REMEDY}")
    if file_checksum(file, lambda _: None) != entry.sha256:
        raise ValueError(f"{file}: checksum differs; {REMEDY}")


def describe(
    manifest: Manifest, degrees: Callable[[EdgeType], Counts]
) -> tuple[tuple[NodeSummary, ...], tuple[EdgeSummary, ...]]:
    """Return summaries of the node types and edge types; `degrees` returns the in-degrees of an edge type."""
    nodes = tuple(_node_summary(manifest, node) for node in manifest.nodes)
    edges = tuple(_edge_summary(manifest, edge, degrees(edge.type)) for edge in manifest.edges)
    return nodes, edges


def degrees_of(degrees: Counts) -> Degrees:
    """Return quantiles (each is the degree of some node) and a histogram of in-degrees."""
    if len(degrees) == 0:
        return Degrees(0, 0, 0, 0, 0, 0.0, 0, ())
    nodes_by_bits = np.bincount(np.frexp(degrees)[1]).tolist()  # bits of the degree: 0, 1, 2-3, 4-7, ...
    histogram = tuple(
        Bucket(1 << bits >> 1, max(0, (1 << bits) - 1), nodes) for bits, nodes in enumerate(nodes_by_bits)
    )
    minimum, median, p90, p99, maximum = np.quantile(degrees, (0, 0.5, 0.9, 0.99, 1), method="inverted_cdf")
    return Degrees(
        minimum=int(minimum),
        median=int(median),
        p90=int(p90),
        p99=int(p99),
        maximum=int(maximum),
        mean=float(degrees.mean()),
        isolated=nodes_by_bits[0],
        histogram=histogram,
    )


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


def _edge_summary(manifest: Manifest, edge: EdgeEntry, degrees: Counts) -> EdgeSummary:
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
) -> tuple[Column, ...]:
    return tuple(
        Column(name, spec.dtype, spec.shape, spec.num_classes, manifest.arrays[files[name]].bytes)
        for name, spec in specs.items()
    )
