"""Tables of this process: pandas, polars, Arrow, and all with Arrow's stream interface."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from khop.importing.packages import pa
from khop.importing.parquet_file import one_batch
from khop.importing.rows import Piece, Place, Rows

CHUNK_ROWS = 1 << 17


@dataclass(frozen=True, eq=False)
class MemoryTable:
    """Rows of an Arrow table."""

    table: Any
    name: str

    @classmethod
    def of(cls, rows: Any, key: str) -> MemoryTable:
        """Wrap a table; its memory is shared where its library allows it."""
        name = f"the table of {key}"
        if isinstance(rows, pa.Table):
            return cls(rows, name)
        if not hasattr(rows, "__arrow_c_stream__"):
            raise ValueError(
                f"{key}: rows is of type {type(rows).__name__}: give a pandas, polars or Arrow table"
            )
        try:
            return cls(pa.table(rows), name)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            column = re.search(r"column (\S+) with", str(error))
            where = f"{key}: the column {column[1]!r}" if column else f"{key}: a column"
            raise ValueError(f"{where} has values of several types; convert it to one type") from None

    @property
    def schema(self) -> Any:
        """Names and types of the columns."""
        return self.table.schema

    @property
    def num_bytes(self) -> int:
        """Size of the table in memory."""
        size: int = self.table.nbytes
        return size

    def pieces(self, columns: Sequence[str]) -> Iterator[Piece]:
        """Yield slices of the table."""
        chosen = self.table.select(list(columns))
        for first in range(0, chosen.num_rows, CHUNK_ROWS):
            batch = one_batch(chosen.slice(first, CHUNK_ROWS))
            yield partial(Rows, batch, Place(self.name, None, first))
