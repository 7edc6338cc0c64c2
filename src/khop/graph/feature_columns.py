"""Columns of a graph folder, mapped for gathering rows by id."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import Tensor

from khop.graph.folder import GraphFolder
from khop.graph.npy import ArrayEntry
from khop.graph.sparse_rows import map_sparse_array
from khop.kernels.memory import memory_limit_bytes
from khop.schema import EdgeType, NodeType


def feature_columns(
    folder: GraphFolder, room_bytes: int | None = None
) -> Mapping[NodeType | EdgeType, Mapping[str, Tensor]]:
    """Return every column that is present, by type.

    If the folder does not fit in `room_bytes`, its largest columns are mapped for reads of single rows. The
    other columns and the edges then stay in memory. The default is three quarters of the memory that this
    process may use.
    """
    if room_bytes is None:
        room_bytes = memory_limit_bytes() // 4 * 3
    arrays = folder.arrays
    files = {
        type_: {name: file for name, file in of_type.items() if file in arrays}
        for type_, of_type in folder.manifest.column_files().items()
    }
    sparse = _too_large(arrays, [file for of_type in files.values() for file in of_type.values()], room_bytes)
    return {
        type_: {
            name: map_sparse_array(folder.path / file, arrays[file]) if file in sparse else folder.array(file)
            for name, file in of_type.items()
        }
        for type_, of_type in files.items()
    }


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
