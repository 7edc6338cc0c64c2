"""Map the parts and arrays that a partition book describes."""

from __future__ import annotations

import os
from pathlib import Path

from torch import Tensor

from khop.errors import REMEDY
from khop.graph import layout
from khop.graph.folder import GraphFolder, open_folder
from khop.graph.manifest import Contents
from khop.graph.npy import file_problem, map_array
from khop.partition.book import BOOK, PartitionBook, part_folder
from khop.schema import NodeType


def open_part(
    path: str | os.PathLike[str], book: PartitionBook, part: int, contents: Contents = Contents.ALL
) -> GraphFolder:
    """Open one part, mapped. Raises ValueError if it belongs to another graph, or if files are missing."""
    folder = open_folder(part_folder(Path(path), part), contents)
    entry = folder.manifest.part
    if folder.fingerprint != book.parts[part] or entry is None or entry.offsets != book.offsets:
        raise ValueError(
            f"{folder.path}: not the part that {BOOK} was written with; copy all of the folder again"
        )
    return folder


def map_whole(path: str | os.PathLike[str], book: PartitionBook, file: str) -> Tensor:
    """Map one of the book's arrays of all nodes. Raises ValueError if it differs from the book's entry."""
    place, entry = Path(path) / file, book.wholes[file]
    if problem := file_problem(place, entry):
        raise ValueError(f"{place}: {problem}; {REMEDY}")
    return map_array(place, entry)


def map_splits(path: str | os.PathLike[str], book: PartitionBook) -> dict[str, dict[NodeType, Tensor]]:
    """Map the splits, by name and node type: int64 global ids, in the order of the unpartitioned graph."""
    splits: dict[str, dict[NodeType, Tensor]] = {}
    for file in filter(layout.is_split, book.wholes):
        node_type, name = layout.split_of(file)
        splits.setdefault(name, {})[node_type] = map_whole(path, book, file)
    return splits
