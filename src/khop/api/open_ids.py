"""The users' own ids of a graph, whole or partitioned, opened by its path."""

from __future__ import annotations

import os

from khop.arguments import path_of
from khop.graph.layout import is_partitioned
from khop.graph.manifest import Contents, open_manifest
from khop.graph.node_ids import OwnIds, ids_in, ids_of
from khop.graph.snapshots import current_folder
from khop.partition.book import read_book
from khop.schema import NodeType


def open_ids(path: str | os.PathLike[str], node_type: NodeType) -> OwnIds:
    """Open the ids of a node type. Takes milliseconds; nothing is read before the first look-up.

    The nodes of a partitioned graph have the ids of the partitioning. ValueError if the type does not exist,
    or if its ids are not stored.
    """
    folder = path_of("path", path)
    if not is_partitioned(folder):
        newest = current_folder(folder)
        return ids_of(newest, open_manifest(newest, Contents.NOTHING)[0], node_type)
    book = read_book(folder)
    if node_type not in book.offsets:
        raise ValueError(f"no node type {node_type!r}; there are {list(book.offsets)}")
    return ids_in(folder, book.wholes, node_type, book.offsets[node_type][-1])
