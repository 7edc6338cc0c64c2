"""Summary of a partitioned graph: the figures of the whole graph, and each part's share."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from khop.errors import REMEDY
from khop.graph import layout
from khop.graph.atomic import Meter, ProgressCallback
from khop.graph.describe import DegreeCounts, FolderSummary, checked_degrees, describe
from khop.graph.manifest import Manifest, read_manifest
from khop.graph.npy import ArrayEntry, file_problem, map_numpy, row_chunks
from khop.graph.partitions.book import DEGREES, PartitionBook, part_folder, read_book
from khop.schema import EdgeType


@dataclass(frozen=True)
class PartSummary:
    """The summary of one part."""

    number: int
    nodes: int  # of all types
    edges: int  # in-edges of these nodes, of all types
    num_bytes: int | None  # None: the part is not on this machine
    most: str  # the balanced quantity of which the part has the largest load, relative to its equal share
    share: float  # that load / the equal share


@dataclass(frozen=True)
class PartsSummary:
    """The summary of a partitioned graph. Sizes count only the files on this machine."""

    whole: FolderSummary
    method: str
    cut: Mapping[str, float]  # by edge type ("source__relation__destination"), and for "all"
    remote_share: float | None  # share of remote nodes in a batch; None: not computed
    parts: tuple[PartSummary, ...]


def describe_parts(path: str | os.PathLike[str], progress: ProgressCallback | None = None) -> PartsSummary:
    """Summarize a partitioned graph. Reads descriptions and in-degrees, but no edges and no features."""
    folder, book = Path(path), read_book(path)
    here = {
        number: _as_it_lies(part_folder(folder, number))
        for number in range(book.num_parts)
        if part_folder(folder, number).is_dir()
    }
    if not here:
        raise ValueError(f"{folder}: none of its {book.num_parts} parts is on this machine; copy one here")
    whole = _as_one(book, list(here.values()))
    files = [layout.edge_array(edge.type, DEGREES) for edge in whole.edges]
    meter = Meter(2 * sum(book.wholes[file].bytes for file in files), progress)
    nodes, edges = describe(whole, lambda edge_type: _degrees(folder, book, edge_type, meter))
    parts = tuple(_part(book, number, here.get(number)) for number in range(book.num_parts))
    sizes = [part.num_bytes or 0 for part in parts]
    num_bytes = sum(sizes) + sum(entry.bytes for entry in book.wholes.values())
    of_all = FolderSummary(str(folder), whole.version, book.fingerprint, num_bytes, nodes, edges)
    return PartsSummary(of_all, book.method, book.quality.cut, book.quality.remote_share, parts)


def _degrees(folder: Path, book: PartitionBook, edge_type: EdgeType, meter: Meter) -> DegreeCounts:
    file = layout.edge_array(edge_type, DEGREES)
    if problem := file_problem(folder / file, book.wholes[file]):
        raise ValueError(f"{folder / file}: {problem}; {REMEDY}")
    chunks = (degrees for _, degrees in row_chunks(map_numpy(folder / file, book.wholes[file])))
    edges = book.first_edges(edge_type)[-1]
    return checked_degrees(chunks, edges, folder / file, book.wholes[file], meter)


def _as_it_lies(part: Path) -> Manifest:
    """Read the manifest of a part; files that are not on this machine count 0 bytes."""
    manifest, _ = read_manifest(part)
    arrays = {f: e if (part / f).exists() else replace(e, bytes=0) for f, e in manifest.arrays.items()}
    return replace(manifest, arrays=arrays)


def _as_one(book: PartitionBook, manifests: list[Manifest]) -> Manifest:
    """Build the manifest of the whole graph, with the sizes of the files on this machine."""
    first = manifests[0]
    arrays: dict[str, ArrayEntry] = {}
    for manifest in manifests:
        for file, entry in manifest.arrays.items():
            before = arrays[file].bytes if file in arrays else 0
            arrays[file] = replace(entry, bytes=before + entry.bytes)
    splits = {file: entry for file, entry in book.wholes.items() if layout.is_split(file)}
    of_type: dict[str, list[str]] = {}
    for node_type, name in map(layout.split_of, splits):
        of_type.setdefault(node_type, []).append(name)
    return Manifest(
        nodes=tuple(
            replace(node, count=book.offsets[node.type][-1], splits=tuple(of_type.get(node.type, ())))
            for node in first.nodes
        ),
        edges=tuple(replace(edge, count=book.first_edges(edge.type)[-1]) for edge in first.edges),
        arrays=arrays | splits,
    )


def _part(book: PartitionBook, number: int, manifest: Manifest | None) -> PartSummary:
    share, most = max((of_parts[number], name) for name, of_parts in book.quality.shares.items())
    offsets = [book.offsets.values(), book.edge_offsets.values()]
    nodes, edges = (sum(of[number + 1] - of[number] for of in kind) for kind in offsets)
    num_bytes = None if manifest is None else sum(entry.bytes for entry in manifest.arrays.values())
    return PartSummary(number, nodes, edges, num_bytes, most, share)
