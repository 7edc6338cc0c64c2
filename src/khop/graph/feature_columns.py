"""Columns of a graph folder, mapped for gathering rows by id."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import Tensor

from khop.graph.folder import GraphFolder
from khop.graph.npy import ArrayEntry
from khop.graph.sparse_rows import map_sparse_array
from khop.kernels.memory import free_memory_bytes
from khop.schema import EdgeType, NodeType

ColumnFiles = Mapping[NodeType | EdgeType, Mapping[str, str]]  # files relative to the folder, by column


def feature_columns(
    folder: GraphFolder, room_bytes: int | None = None
) -> Mapping[NodeType | EdgeType, Mapping[str, Tensor]]:
    """Return every column that is present, by type, mapped.

    The columns of `large_columns` are mapped for reads of single rows.
    """
    sparse = large_columns(folder, room_bytes)
    return {
        type_: {
            name: map_sparse_array(folder.path / file, folder.arrays[file])
            if name in sparse.get(type_, {})
            else folder.array(file)
            for name, file in of_type.items()
        }
        for type_, of_type in column_files(folder).items()
    }


def column_files(folder: GraphFolder) -> ColumnFiles:
    """Return the file of every column that is present, by type."""
    return {
        type_: {name: file for name, file in of_type.items() if file in folder.arrays}
        for type_, of_type in folder.manifest.column_files().items()
    }


def large_columns(folder: GraphFolder, room_bytes: int | None = None) -> ColumnFiles:
    """Return the largest columns; the rest of the folder, with all edges, fits in `room_bytes`.

    The default is three quarters of the memory that this process may still take.
    """
    room_bytes = free_memory_bytes() // 4 * 3 if room_bytes is None else room_bytes
    files = column_files(folder)
    large = _too_large(
        folder.arrays, [file for of_type in files.values() for file in of_type.values()], room_bytes
    )
    return {t: {name: file for name, file in of.items() if file in large} for t, of in files.items()}


def _too_large(arrays: Mapping[str, ArrayEntry], columns: Collection[str], room_bytes: int) -> set[str]:
    """Return the largest columns; without them the rest of the arrays fits in `room_bytes`."""
    excess = sum(entry.data_bytes for entry in arrays.values()) - room_bytes
    too_large = set()
    for file in sorted(columns, key=lambda file: (-arrays[file].data_bytes, file)):
        if excess <= 0:
            break
        too_large.add(file)
        excess -= arrays[file].data_bytes
    return too_large
