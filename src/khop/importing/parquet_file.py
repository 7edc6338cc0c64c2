"""Parquet files as a table: a piece is a row group."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from threading import local
from typing import Any

from khop.importing.file_schema import FileTable, NamedPath, same_schema
from khop.importing.packages import pa, pq, reading
from khop.importing.rows import Piece, Place, Rows

_DAMAGED = "is not a Parquet file, or is damaged"
_OPEN = local()  # the last file of each thread: opening a file reads its footer


@dataclass(frozen=True, eq=False)
class ParquetTable(FileTable):
    """Rows of Parquet files. Threads may read row groups at the same time."""

    groups: Sequence[int]  # row groups of each file

    @classmethod
    def open(cls, files: Sequence[NamedPath], key: str) -> ParquetTable:
        """Read the footers of all files."""
        schemas, groups = [], []
        for name, path in files:
            with reading(f"{key}: {name}", "write it again", _DAMAGED), pq.ParquetFile(path) as file:
                schemas.append((name, file.schema_arrow))
                groups.append(file.metadata.num_row_groups)
        return cls(tuple(files), *same_schema(schemas, key), key, tuple(groups))

    def pieces(self, columns: Sequence[str]) -> Iterator[Piece]:
        """Yield a reader per row group."""
        for (name, path), groups in zip(self.files, self.groups, strict=True):
            for group in range(groups):
                yield partial(self._read, name, str(path), group, list(columns))

    def _read(self, name: str, path: str, group: int, columns: list[str]) -> Rows:
        with reading(f"{self.key}: {name}, row group {group}", "write it again", "is damaged"):
            file = _opened(path)
            table = file.read_row_group(group, columns=columns, use_threads=False)
        place = Place(name, group if file.metadata.num_row_groups > 1 else None)
        return Rows(one_batch(table.select(columns)), place)


def one_batch(table: Any) -> Any:
    """Return a table as one record batch."""
    arrays = [_joined(column) for column in table.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([
        pa.field(field.name, array.type) for field, array in zip(table.schema, arrays, strict=True)
    ]))  # fmt: skip


def _joined(column: Any) -> Any:
    joined = column.combine_chunks()
    return joined.combine_chunks() if hasattr(joined, "chunks") else joined


def _opened(path: str) -> Any:
    found = os.stat(path)
    identity = (path, found.st_ino, found.st_size, found.st_mtime_ns)  # a file may be written again
    if getattr(_OPEN, "identity", None) != identity:
        _OPEN.file, _OPEN.identity = pq.ParquetFile(path), identity
    return _OPEN.file
