"""JSON lines as a table: an object per line, read by DuckDB in the order of the lines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from khop.importing.csv_file import BATCH_ROWS, file_pattern, literal, quoted
from khop.importing.file_schema import FileTable, NamedPath, same_schema
from khop.importing.packages import duckdb, reading
from khop.importing.rows import Piece, Place, Rows

_TYPES = ("BIGINT", "DOUBLE", "BOOLEAN", "VARCHAR")  # and lists of them; all other values are kept as text
_LINE = re.compile(r"at byte \d+ in line (\d+)")
_OPTIONS = "format='newline_delimited', hive_partitioning=false, maximum_object_size=67108864"


@dataclass(frozen=True, eq=False)
class JsonTable(FileTable):
    """Rows of JSON lines. Text stays text, also that of dates; a nested object is its text."""

    types: Sequence[dict[str, str]]  # of DuckDB, by the columns of each file

    @classmethod
    def open(cls, files: Sequence[NamedPath], key: str) -> JsonTable:
        """Read all lines for the names and types of the columns."""
        types, schemas = [], []
        for name, path in files:
            with _connected(path, f"{key}: {name}") as (connection, source):
                found = connection.sql(f"SELECT * FROM read_json({source}, {_OPTIONS}, sample_size=-1)")
                kinds = [str(one) for one in found.types]
                plain = [one if one.removesuffix("[]") in _TYPES else "VARCHAR" for one in kinds]
                types.append(dict(zip(found.columns, plain, strict=True)))
                empty = connection.sql(f"{_query(source, types[-1], list(types[-1]))} LIMIT 0")
                schemas.append((name, empty.to_arrow_table().schema))
        return cls(tuple(files), *same_schema(schemas, key), key, tuple(types))

    def pieces(self, columns: Sequence[str]) -> Iterator[Piece]:
        """Yield rows that have been read already."""
        for (name, path), types in zip(self.files, self.types, strict=True):
            first = 0
            with _connected(path, f"{self.key}: {name}") as (connection, source):
                query = connection.sql(_query(source, types, columns))
                with closing(query.to_arrow_reader(BATCH_ROWS)) as reader:
                    for batch in reader:
                        yield partial(Rows, batch, Place(name, None, first))
                        first += batch.num_rows


@contextmanager
def _connected(path: Path, place: str) -> Iterator[tuple[Any, str]]:
    """Yield a connection, and the file as text of SQL. An error names the line."""
    with reading(place, "give one object per line", "is not JSON lines"):
        try:
            with (
                duckdb.connect(config={"threads": 2, "memory_limit": "1GB"}) as connection,
                file_pattern(path) as pattern,
            ):
                yield connection, literal(pattern)
        except duckdb.Error as error:
            if line := _LINE.search(str(error)):
                raise ValueError(f"{place}, line {line[1]}: is not JSON; correct the line") from None
            raise


def _query(source: str, types: dict[str, str], columns: Sequence[str]) -> str:
    chosen = ", ".join(map(quoted, columns))
    kinds = ", ".join(f"{literal(name)}: {literal(kind)}" for name, kind in types.items())
    return f"SELECT {chosen} FROM read_json({source}, {_OPTIONS}, columns={{{kinds}}})"
