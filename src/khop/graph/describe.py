"""What a graph folder holds, as numbers to look at: counts, degrees, columns, splits, sizes on disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from khop.graph.layout import edge_array, edge_column, node_column, node_split
from khop.graph.manifest import REMEDY, VERSION, EdgeEntry, Manifest, NodeEntry, open_manifest
from khop.graph.npy import ArrayEntry, file_checksum, map_numpy
from khop.schema import ColumnSpec, EdgeType, NodeType

Counts = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Bucket:
    """How many destinations have a degree in a range that doubles: 0, 1, 2-3, 4-7, ..."""

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
    """One column and the size of its file."""

    name: str
    dtype: str
    shape: tuple[int, ...]  # of one row
    num_classes: int | None
    num_bytes: int


@dataclass(frozen=True)
class NodeSummary:
    """One node type."""

    type: NodeType
    count: int
    columns: tuple[Column, ...]
    splits: Mapping[str, int]  # name -> nodes
    num_bytes: int


@dataclass(frozen=True)
class EdgeSummary:
    """One edge type."""

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
    """A whole graph folder."""

    path: str
    version: int
    fingerprint: str
    num_bytes: int
    nodes: tuple[NodeSummary, ...]
    edges: tuple[EdgeSummary, ...]


def describe_folder(path: str | os.PathLike[str]) -> FolderSummary:
    """Open a folder and count. Reads the offsets of every edge type, no other data; in-degrees only.

    ValueError names a file of offsets that is damaged, and the row where the numbers show it.
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
    return FolderSummary(str(folder), VERSION, fingerprint, num_bytes, nodes, edges)


def check_degrees(degrees: Counts, edges: int, file: Path, entry: ArrayEntry) -> None:
    """ValueError where these are not the in-degrees that the file held when it was written."""
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
    """The node types and the edge types of a description; `degrees` gives those of every destination."""
    nodes = tuple(_node_summary(manifest, node) for node in manifest.nodes)
    edges = tuple(_edge_summary(manifest, edge, degrees(edge.type)) for edge in manifest.edges)
    return nodes, edges


def degrees_of(degrees: Counts) -> Degrees:
    """In-degrees as quantiles (each the degree of some node) and as a histogram."""
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
