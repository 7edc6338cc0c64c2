"""Columns of a graph folder, mapped for gathering rows by id."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import Tensor

from khop.graph.folder import GraphFolder
from khop.graph.npy import ArrayEntry, torch_dtype
from khop.graph.sparse_rows import map_sparse_array
from khop.kernels.file_rows import RowFile
from khop.kernels.memory import free_memory_bytes
from khop.schema import EdgeType, NodeType

ColumnFiles = Mapping[NodeType | EdgeType, Mapping[str, str]]  # files relative to the folder, by column
Columns = Mapping[NodeType | EdgeType, Mapping[str, Tensor]]
ON_DISK, IN_MEMORY = "disk", "host"  # places of columns; others are mapped


def feature_columns(folder: GraphFolder, room_bytes: int | None = None) -> Columns:
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


def disk_columns(
    folder: GraphFolder, places: Mapping[str, str] | None = None, room_bytes: int | None = None
) -> Mapping[NodeType | EdgeType, Mapping[str, RowFile]]:
    """Open the files of the columns that `places` keeps on disk by name, and of the large ones it lacks."""
    places, large = places or {}, large_columns(folder, room_bytes)
    return {
        t: {
            name: _row_file(folder, file)
            for name, file in of_type.items()
            if places.get(name, ON_DISK if name in large[t] else "") == ON_DISK
        }
        for t, of_type in column_files(folder).items()
    }


def copied_columns(columns: Columns, places: Mapping[str, str]) -> Columns:
    """Return columns with copies of the node columns that `places` keeps in memory by name."""
    return {
        t: {
            name: column.clone() if isinstance(t, str) and places.get(name) == IN_MEMORY else column
            for name, column in of_type.items()
        }
        for t, of_type in columns.items()
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


def _row_file(folder: GraphFolder, file: str) -> RowFile:
    entry = folder.arrays[file]
    header = entry.bytes - entry.data_bytes
    return RowFile.open(folder.path / file, header, entry.shape[0], entry.shape[1:], torch_dtype(entry.dtype))
