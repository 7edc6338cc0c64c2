"""The users' own ids of nodes, as a mapped index in the graph folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from khop.arguments import path_of
from khop.errors import REMEDY
from khop.graph import layout
from khop.graph.manifest import Contents, Manifest, open_manifest
from khop.graph.npy import map_numpy
from khop.kernels.id_table import Int64s, Keys, StringKeys
from khop.kernels.key_index import KeyIndex
from khop.schema import NodeType

STRING, INTEGER = "string", "int64"
_CHECKED_AT_ONCE = 1 << 18


@dataclass(frozen=True, eq=False)
class OwnIds:
    """Ids of the nodes of one type, both ways. Arrays are mapped: a look-up reads a few pages."""

    node_type: NodeType
    stored: Keys  # by row
    index: KeyIndex
    home: str  # for errors

    def __len__(self) -> int:
        return len(self.stored)

    def rows(self, ids: Sequence[str] | Sequence[int] | Int64s) -> Int64s:
        """Return the node of each id, -1 for unknown ids.

        Ids of integer tables may also be given as text, as on the command line.
        """
        try:
            return self.index.find(self.stored, self._keys(list(ids)))
        except ValueError as error:
            if hasattr(error, "array"):
                raise ValueError(f"{self.home}: {error}; {REMEDY}") from error
            raise

    def ids(self, rows: Sequence[int] | Int64s) -> list[str] | list[int]:
        """Return the id of each node; ValueError for a node that does not exist."""
        wanted = np.asarray(rows, np.int64)
        outside = np.flatnonzero((wanted < 0) | (wanted >= len(self)))
        if len(outside):
            raise ValueError(
                f"node {wanted[outside[0]]}: there are {len(self):,} {self.node_type!r} nodes, 0 to "
                f"{len(self) - 1}"
            )
        if isinstance(self.stored, StringKeys):
            return [self.stored.bytes_at(int(row)).decode() for row in wanted]
        return [int(self.stored[row]) for row in wanted]

    def _keys(self, ids: Sequence[Any]) -> Keys:
        if isinstance(self.stored, StringKeys):
            for id_ in ids:
                if not isinstance(id_, str):
                    raise ValueError(f"id {id_!r}: ids of {self.node_type!r} are text; give it in quotes")
            return StringKeys.of(list(ids))
        try:
            return np.array([int(id_) for id_ in ids], np.int64)
        except (ValueError, OverflowError) as error:
            raise ValueError(f"ids of {self.node_type!r} are integers of 64 bits: {error}") from error


def first_lost(ids: OwnIds) -> int:
    """Return the first node whose id does not lead back to it, or -1."""
    for first in range(0, len(ids), _CHECKED_AT_ONCE):
        keys = ids.stored[first : first + _CHECKED_AT_ONCE]
        found = ids.index.find(ids.stored, keys)
        wrong = np.flatnonzero(found != np.arange(first, first + len(keys)))
        if len(wrong):
            return first + int(wrong[0])
    return -1


def open_ids(path: str | os.PathLike[str], node_type: NodeType) -> OwnIds:
    """Open the ids of a node type. Takes milliseconds; nothing is read before the first look-up.

    ValueError if the type does not exist, or if its ids are not stored.
    """
    folder = path_of("path", path)
    manifest, _, _ = open_manifest(folder, Contents.NOTHING)
    return ids_of(folder, manifest, node_type)


def stored_ids(folder: Path) -> dict[NodeType, Keys]:
    """Return the ids of a folder by node type, mapped, for those types whose ids are stored."""
    if layout.is_partitioned(folder):
        return {}
    manifest, _, _ = open_manifest(folder, Contents.NOTHING)
    return {node.type: ids_of(folder, manifest, node.type).stored for node in manifest.nodes if node.ids}


def ids_of(folder: Path, manifest: Manifest, node_type: NodeType) -> OwnIds:
    """Map the ids of a node type; ValueError if they are not stored."""
    entry = manifest.node(node_type)
    if not entry.ids:
        raise ValueError(
            f"{folder}: ids of {node_type!r} are not stored; its nodes are 0 to {entry.count - 1}. Import "
            'the graph without ids = "none", or give NodeTable(ids=...)'
        )

    def mapped(name: str) -> npt.NDArray[Any]:
        file = layout.node_ids(node_type, name)
        if not (folder / file).is_file():
            raise ValueError(f"{folder / file}: is not on this machine; copy it here")
        return map_numpy(folder / file, manifest.arrays[file])

    stored: Keys = StringKeys(mapped("offsets"), mapped("bytes")) if entry.ids == STRING else mapped("keys")
    index = KeyIndex(mapped("buckets"), mapped("rows"), mapped("tags"))
    return OwnIds(node_type, stored, index, str(folder / layout.node_ids(node_type, "")))
