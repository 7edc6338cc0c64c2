"""Verification of a partitioned graph: damaged files, and missing or duplicated nodes and edges."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch

from khop.errors import REMEDY
from khop.graph import layout
from khop.graph.atomic import ProgressCallback
from khop.graph.derived import derived_problems
from khop.graph.folder import GraphFolder
from khop.graph.inputs import Given, check_splits
from khop.graph.manifest import read_manifest
from khop.graph.npy import file_checksum
from khop.graph.partitions.book import BOOK, PartitionBook, edge_key, part_folder, read_book
from khop.graph.partitions.parts_folder import edge_digest, map_splits, map_whole, open_part
from khop.graph.verify import WRITE_AGAIN, FileFinding, document_problems, verify_folder
from khop.schema import NodeType

_WORD = (1 << 64) - 1


def verify_partition(
    path: str | os.PathLike[str], notice: ProgressCallback | None = None
) -> list[FileFinding]:
    """Return all findings in a partitioned graph, sorted by file; empty if it is intact.

    Each part is verified as a graph folder. Then every original id must occur once, and the edges must equal
    the edges of the source graph, compared by original ids and positions in their rows.
    """
    folder = Path(path)
    book = read_book(folder)
    findings: list[FileFinding] = []
    for part in range(book.num_parts):
        place = part_folder(folder, part)
        try:
            of_part = verify_folder(place, notice)
        except ValueError as error:
            findings.append(FileFinding(place.name, str(error)))
            continue
        findings += (FileFinding(f"{place.name}/{finding.file}", finding.problem) for finding in of_part)
    findings += _whole_findings(folder, book)
    findings += _derived_findings(folder, book)
    for name, sha256 in book.documents.items():
        findings += document_problems(folder, name, sha256)
    if not findings:
        findings += _lost_or_twice(folder, book)
    return sorted(findings, key=lambda finding: finding.file)


def _whole_findings(folder: Path, book: PartitionBook) -> Iterator[FileFinding]:
    for file, entry in book.wholes.items():
        if not (folder / file).is_file() or file_checksum(folder / file, lambda _: None) != entry.sha256:
            yield FileFinding(file, f"is missing, or its checksum differs from {BOOK}; {REMEDY}")
            return
    of_types: dict[NodeType, dict[str, Given]] = {}
    for name, by_type in map_splits(folder, book).items():
        for node_type, ids in by_type.items():
            of_types.setdefault(node_type, {})[name] = Given.of(ids, layout.node_split(node_type, name))
    for node_type, splits in of_types.items():
        try:
            check_splits(splits, book.offsets[node_type][-1], f"{node_type!r} nodes")
        except ValueError as error:
            yield FileFinding(layout.node_splits(node_type), str(error))


def _derived_findings(folder: Path, book: PartitionBook) -> Iterator[FileFinding]:
    """Find damage in the arrays that were derived from several parts."""
    arrays = dict(book.wholes)
    for part in range(book.num_parts):
        place = part_folder(folder, part)
        with suppress(ValueError):  # already reported as a finding of this part
            of_part = read_manifest(place)[0].arrays
            arrays |= {f"{place.name}/{file}": entry for file, entry in of_part.items()}
    for file, problem in derived_problems(folder, book.fingerprint, arrays, lambda *_: None):
        yield FileFinding(file, problem)


def _lost_or_twice(folder: Path, book: PartitionBook) -> Iterator[FileFinding]:
    try:
        parts = [open_part(folder, book, part) for part in range(book.num_parts)]
    except ValueError as error:
        yield FileFinding(BOOK, str(error))
        return
    originals = {
        node_type: torch.cat([_original_ids(part, node_type) for part in parts]) for node_type in book.offsets
    }
    for node_type, ids in originals.items():
        if torch.unique(ids).numel() != ids.numel():
            yield FileFinding(BOOK, f"two {node_type!r} nodes have the same original id; {WRITE_AGAIN}")
        for name in parts[0].schema.columns.get(node_type, {}):
            file = layout.node_column(node_type, name)
            of_parts = [part.columns()[node_type][name] for part in parts]
            if file in book.wholes and not _same_bits(map_whole(folder, book, file), torch.cat(of_parts)):
                yield FileFinding(file, f"differs from the column of the parts; {WRITE_AGAIN}")
    for edge_type in parts[0].schema.edge_types:
        source, _, destination = edge_type
        digest = sum(
            edge_digest(part.csc(edge_type), originals[source], _original_ids(part, destination))
            for part in parts
        )
        count = sum(part.num_edges(edge_type) for part in parts)
        known = book.first_edges(edge_type)[-1], book.edge_digests[edge_key(edge_type)]
        if (count, digest & _WORD) != known:
            yield FileFinding(
                BOOK,
                f"the edges of {edge_type} differ from those of the graph before partitioning; {WRITE_AGAIN}",
            )


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return True for equal bytes. NaN, an unknown regression target, is equal to itself."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return torch.equal(*(values.contiguous().view(-1).view(torch.uint8) for values in (one, other)))


def _original_ids(part: GraphFolder, node_type: NodeType) -> torch.Tensor:
    ids = part.original_ids(node_type)
    assert ids is not None  # every part has them
    return ids
