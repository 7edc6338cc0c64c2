"""The users' own ids of nodes, as a mapped index in the graph folder."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from khop.errors import REMEDY
from khop.graph import layout
from khop.graph.folder import Folder, refuse_replaced
from khop.graph.manifest import Manifest
from khop.graph.npy import ArrayEntry, map_numpy
from khop.kernels.id_table import Int64s, Keys, StringKeys
from khop.kernels.key_index import KeyIndex
from khop.schema import NodeType

STRING, INTEGER = "string", "int64"
_CHECKED_AT_ONCE = 1 << 18
_LEAST = -(1 << 63)
_INTEGER = re.compile(r"0|-?[1-9][0-9]*")


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
        return np.array([self._integer(id_) for id_ in ids], np.int64)

    def _integer(self, id_: str | int) -> int:
        """Return an id as it is stored. "007", 7.9 and True are not the id 7."""
        is_number = isinstance(id_, int | np.integer) and not isinstance(id_, bool)
        is_written = isinstance(id_, str) and _INTEGER.fullmatch(id_) is not None
        if (is_number or is_written) and _LEAST <= int(id_) <= -_LEAST - 1:
            return int(id_)
        raise ValueError(f"id {id_!r}: ids of {self.node_type!r} are integers of 64 bits; correct it")


def first_lost(ids: OwnIds) -> int:
    """Return the first node with an id that does not lead back to it, or -1."""
    for first in range(0, len(ids), _CHECKED_AT_ONCE):
        keys = ids.stored[first : first + _CHECKED_AT_ONCE]
        found = ids.index.find(ids.stored, keys)
        wrong = np.flatnonzero(found != np.arange(first, first + len(keys)))
        if len(wrong):
            return first + int(wrong[0])
    return -1


def stored_ids(folder: Folder) -> dict[NodeType, Keys]:
    """Return the ids of a graph by node type, mapped, for those types whose ids are stored."""
    refuse_replaced(folder)
    having = [t for t in folder.schema.node_types if _kind(folder.arrays, t)]
    return {t: ids_in(folder.path, folder.arrays, t, folder.num_nodes(t)).stored for t in having}


def ids_of(folder: Path, manifest: Manifest, node_type: NodeType) -> OwnIds:
    """Map the ids of a node type of a graph folder; ValueError if they are not stored."""
    return ids_in(folder, manifest.arrays, node_type, manifest.node(node_type).count)


def ids_in(folder: Path, arrays: Mapping[str, ArrayEntry], node_type: NodeType, count: int) -> OwnIds:
    """Map the ids of a node type from the arrays of a graph; ValueError if they are not stored."""
    kind = _kind(arrays, node_type)
    if not kind:
        raise ValueError(
            f"{folder}: ids of {node_type!r} are not stored; its nodes are 0 to {count - 1}. Import "
            'the graph without ids = "none", or give NodeTable(ids=...)'
        )

    def mapped(name: str) -> npt.NDArray[Any]:
        file = layout.node_ids(node_type, name)
        if not (folder / file).is_file():
            raise ValueError(f"{folder / file}: is not on this machine; copy it here")
        return map_numpy(folder / file, arrays[file])

    stored: Keys = StringKeys(mapped("offsets"), mapped("bytes")) if kind == STRING else mapped("keys")
    index = KeyIndex(mapped("buckets"), mapped("rows"), mapped("tags"))
    return OwnIds(node_type, stored, index, str(folder / layout.node_ids(node_type, "")))


def _kind(arrays: Mapping[str, ArrayEntry], node_type: NodeType) -> str:
    """Return the kind of the stored ids of a type; "" if none are stored."""
    first = {"bytes": STRING, "keys": INTEGER}
    return next((kind for name, kind in first.items() if layout.node_ids(node_type, name) in arrays), "")
