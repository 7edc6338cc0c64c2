"""Columns of a graph folder as a feature store: mapped, in memory, or read from disk row by row."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from khop.features.disk_table import DiskTable
from khop.features.store import FeatureStore
from khop.features.table import FeatureTable
from khop.graph.feature_columns import ColumnFiles, column_files, feature_columns, large_columns
from khop.graph.folder import GraphFolder
from khop.graph.npy import torch_dtype
from khop.kernels.file_rows import RowFile
from khop.loading.device_placement import StorePlace
from khop.schema import EdgeType, NodeType


def folder_features(
    folder: GraphFolder, places: Mapping[str, StorePlace] | None = None, room_bytes: int | None = None
) -> FeatureStore:
    """Return the columns of a folder, each where `places` says by its name.

    Other columns are mapped if the folder fits in `room_bytes`, by default three quarters of the free memory.
    Otherwise the largest ones are read from disk. HOST copies columns of nodes into memory.
    """
    places = places or {}
    on_disk = _on_disk(column_files(folder), large_columns(folder, room_bytes), places)
    table = FeatureTable.of(folder.schema, _in_memory(feature_columns(folder, room_bytes), places))
    files = {
        t: {name: _row_file(folder, file) for name, file in of_type.items()}
        for t, of_type in on_disk.items()
        if of_type
    }
    return DiskTable(table, files) if files else table


def _on_disk(files: ColumnFiles, large: ColumnFiles, places: Mapping[str, StorePlace]) -> ColumnFiles:
    return {
        t: {
            name: file
            for name, file in of_type.items()
            if places.get(name, StorePlace.DISK if name in large[t] else None) is StorePlace.DISK
        }
        for t, of_type in files.items()
    }


def _in_memory(
    columns: Mapping[NodeType | EdgeType, Mapping[str, Tensor]], places: Mapping[str, StorePlace]
) -> Mapping[NodeType | EdgeType, Mapping[str, Tensor]]:
    return {
        t: {
            name: column.clone() if isinstance(t, str) and places.get(name) is StorePlace.HOST else column
            for name, column in of_type.items()
        }
        for t, of_type in columns.items()
    }


def _row_file(folder: GraphFolder, file: str) -> RowFile:
    entry = folder.arrays[file]
    header = entry.bytes - entry.data_bytes
    return RowFile.open(folder.path / file, header, entry.shape[0], entry.shape[1:], torch_dtype(entry.dtype))
