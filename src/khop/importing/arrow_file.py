"""Arrow files (IPC, Feather) as a table: a piece is a record batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from khop.importing.file_schema import FileTable, NamedPath, same_schema
from khop.importing.packages import pa, reading
from khop.importing.rows import Piece, Place, Rows


@dataclass(frozen=True, eq=False)
class ArrowTable(FileTable):
    """Rows of Arrow IPC files, mapped."""

    @classmethod
    def open(cls, files: Sequence[NamedPath], key: str) -> ArrowTable:
        """Read the schemas of all files."""
        schemas = [(name, _opened(name, path, key).schema) for name, path in files]
        return cls(tuple(files), *same_schema(schemas, key), key)

    def pieces(self, columns: Sequence[str]) -> Iterator[Piece]:
        """Yield a reader per record batch."""
        for name, path in self.files:
            reader, first = _opened(name, path, self.key), 0
            for number in range(reader.num_record_batches):
                with reading(f"{self.key}: {name}, batch {number}", "write it again", "is damaged"):
                    batch = reader.get_batch(number).select(list(columns))
                yield partial(Rows, batch, Place(name, None, first))
                first += batch.num_rows


def _opened(name: str, path: Path, key: str) -> Any:
    with reading(f"{key}: {name}", "write it again", "is not an Arrow file, or is damaged"):
        return pa.ipc.open_file(pa.memory_map(str(path)))
