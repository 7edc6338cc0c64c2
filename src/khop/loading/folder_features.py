"""Columns of a graph folder as a feature store: mapped, in memory, or read from disk row by row."""

from __future__ import annotations

from collections.abc import Mapping

from khop.features.disk_table import DiskTable
from khop.features.store import FeatureStore
from khop.features.table import FeatureTable
from khop.graph.feature_columns import copied_columns, disk_columns, feature_columns
from khop.graph.folder import GraphFolder
from khop.loading.device_placement import StorePlace


def folder_features(
    folder: GraphFolder, places: Mapping[str, StorePlace] | None = None, room_bytes: int | None = None
) -> FeatureStore:
    """Return the columns of a folder, each where `places` says by its name.

    Other columns are mapped if the folder fits in `room_bytes`, by default three quarters of the free memory.
    Otherwise the largest ones are read from disk. HOST copies columns of nodes into memory.
    """
    columns = copied_columns(feature_columns(folder, room_bytes), places or {})
    table = FeatureTable.of(folder.schema, columns)
    on_disk = {t: files for t, files in disk_columns(folder, places, room_bytes).items() if files}
    return DiskTable(table, on_disk) if on_disk else table
