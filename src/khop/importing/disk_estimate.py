"""Disk space and rows of an import, estimated before rows are read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from khop.importing.column_spec import (
    AnyEdgeColumn,
    Boolean,
    Category,
    Date,
    Multi,
    Number,
    Raw,
    Text,
    Vector,
    Words,
)
from khop.importing.csv_file import CsvTable
from khop.importing.duckdb_table import DuckDbTable
from khop.importing.import_state import ImportState
from khop.importing.memory_table import MemoryTable
from khop.importing.node_columns import raw_dtype
from khop.importing.packages import pa, pq
from khop.importing.parquet_file import ParquetTable
from khop.importing.postgres_table import PostgresTable
from khop.importing.rows import Table
from khop.importing.source import OpenSource
from khop.importing.spec import EdgeRules
from khop.importing.sqlite_table import SqliteTable
from khop.schema import EdgeType

_SAMPLE = 1 << 20  # bytes of a CSV file whose lines are counted
_CODECS = {".gz": "gzip", ".zst": "zstd"}
_ENDS, _WORD, _FLOAT = 8, 8, 4  # bytes: both ends of an edge, a position, time or key, a feature
_OFFSET = 4  # bytes of Arrow for each text
_SLOTS, _TEXT = 28, 16  # bytes of an id in a dictionary besides its text; a text of unknown length


def import_bytes(work: ImportState) -> int:
    """Return about the bytes of edges between reading and sorting, of nodes, and of dictionaries in files.

    Tables whose number of rows is not known before they are read count nothing: Arrow files, and tables with
    `where`.
    """
    edges = sum(
        rows_of(work.edge_sources[edge_type]) * _row_bytes(rules, work.edge_sources[edge_type])
        for edge_type, rules in work.rules().items()
    )
    nodes = sum(
        rows_of(source) * (_WORD + _columns_bytes(work.spec.nodes[node_type].columns, source))
        for node_type, source in work.sources.items()
    )
    return edges + nodes + _dictionaries(work)


def _columns_bytes(columns: Mapping[str, AnyEdgeColumn], source: OpenSource) -> int:
    """Return the bytes of the columns in a row; widths that only the rows tell count as the least."""
    schema = source.schema
    return sum(column_bytes(one, schema.field(one.column or name).type) for name, one in columns.items())


def column_bytes(column: AnyEdgeColumn, dtype: Any) -> int:
    """Return the bytes of a column in a row, or the least if the rows decide on its width."""
    match column:
        case Text(width=width):
            return _FLOAT * width
        case Vector() if pa.types.is_fixed_size_list(dtype):
            return _FLOAT * int(dtype.list_size)
        case Number(flag=flag):
            return _FLOAT * (2 if flag == "missing" else 1)
        case Date(parts=parts):
            return _FLOAT * sum(1 if part in ("age", "year") else 2 for part in parts)
        case Category(encoding="one-hot") | Multi():
            return _FLOAT * 3  # "other", null and one category
        case Raw(dtype=asked):
            return np.dtype(raw_dtype(dtype, asked)).itemsize
        case Boolean() | Category() | Words():
            return 2 * _FLOAT
        case _:
            return _FLOAT


def _dictionaries(work: ImportState) -> int:
    """Return about the bytes of dictionaries that do not fit in the budget and will be in files."""
    sizes = [rows_of(source) * _id_bytes(work, node_type) for node_type, source in work.sources.items()]
    return sum(size for size in sizes if size > work.ids_share)


def _id_bytes(work: ImportState, node_type: str) -> int:
    """Return about the bytes of one id in a dictionary."""
    if work.ids[node_type].kind != "string":
        return _SLOTS
    table, name = work.sources[node_type].table, work.spec.nodes[node_type].id
    if not isinstance(table, ParquetTable):
        return _SLOTS + _TEXT
    size = rows = 0
    for _, path in table.files:
        metadata = pq.read_metadata(path)
        for group in range(metadata.num_row_groups):
            columns = metadata.row_group(group)
            rows += columns.num_rows
            chunks = (columns.column(at) for at in range(columns.num_columns))
            size += sum(one.total_uncompressed_size for one in chunks if one.path_in_schema == name)
    return _SLOTS + size // max(1, rows)


def rows_to_read(work: ImportState) -> int:
    """Return about the rows that the reading passes over, some tables more than once.

    Edges are read to be sorted, before that for the statistics of their columns, and for each end whose ids
    they add.
    """
    nodes = sum(table_rows(source) for source in work.sources.values())
    edges = sum(edge_passes(work, one) * table_rows(source) for one, source in work.edge_sources.items())
    return nodes + edges


def edge_passes(work: ImportState, edge_type: EdgeType) -> int:
    """Return how often the rows of an edge type are read."""
    rules, ends = work.rules()[edge_type], (edge_type[0], edge_type[2])
    if work.given is not None:  # later data: each end may be a node of the graph
        return 1 + len(ends)
    adding = [end for end in ends if rules.orphans == "add" or end not in work.sources]
    return 1 + len(adding) + any(not isinstance(one, Raw) for one in rules.columns.values())


def read_again(work: ImportState) -> list[list[EdgeType]]:
    """Return the edge types of each CSV table that is read more than once."""
    by_table: dict[int, list[EdgeType]] = {}
    for edge_type, source in work.edge_sources.items():
        if source.is_untyped:
            by_table.setdefault(id(source.table), []).append(edge_type)
    return [types for types in by_table.values() if sum(edge_passes(work, one) for one in types) > 1]


def kept_bytes(work: ImportState) -> int:
    """Return about the bytes of rows of CSV files that are kept while edges are read."""
    return sum(_as_arrow(work.edge_sources[types[0]].table) for types in read_again(work))


def _as_arrow(table: Table) -> int:
    """Return about the bytes of a table of text: its text, and an offset for each value."""
    assert isinstance(table, CsvTable), "no other table is text"
    sizes = [_text_size(path) for _, path in table.files]
    return sum(size.text_bytes + _OFFSET * size.lines * len(table.schema) for size in sizes)


def rows_of(source: OpenSource) -> int:
    """Return the rows of a table that are kept; 0 if they are not known before they are read."""
    return 0 if source.wheres else table_rows(source)


def table_rows(source: OpenSource) -> int:
    """Return the rows of a table before `where`, for CSV about so many; 0 for Arrow files."""
    match source.table:
        case ParquetTable(files=files):
            return sum(int(pq.read_metadata(path).num_rows) for _, path in files)
        case MemoryTable(table=table):
            return int(table.num_rows)
        case DuckDbTable() | SqliteTable() | PostgresTable():
            return source.table.num_rows
        case CsvTable(files=files):
            return sum(_text_size(path).lines for _, path in files)
        case _:
            return 0


def peak_bytes(types: Iterable[tuple[int, int]]) -> int:
    """Return the most further bytes on disk while types are written one by one.

    Each has the bytes of its arrays, which are added, and of its file of edges, which is removed after them.
    """
    used = peak = 0
    for of_arrays, of_file in types:
        used += of_arrays
        peak = max(peak, used)
        used -= of_file
    return peak


def _row_bytes(rules: EdgeRules, source: OpenSource) -> int:
    """Return the bytes of an edge, and of its reverse, on disk."""
    words = bool(rules.columns or source.spec.time or rules.duplicates != "keep") + bool(source.spec.time)
    one = _ENDS + _WORD * words + _columns_bytes(rules.columns, source)
    return one * (1 if rules.reverse is None else 2)


@dataclass(frozen=True)
class _TextSize:
    lines: int
    text_bytes: int  # not compressed


def _text_size(path: Path) -> _TextSize:
    """Return about the size of a CSV file, as if all of it were as its first bytes."""
    size = path.stat().st_size
    with path.open("rb") as file:
        codec = _CODECS.get(path.suffix)
        stream = pa.CompressedInputStream(file, codec) if codec else file  # closes the file when it is let go
        text, read = stream.read(_SAMPLE), file.tell()
    lines: int = text.count(b"\n")
    if read >= size and len(text) < _SAMPLE:
        return _TextSize(lines, len(text))
    return _TextSize(lines * size // max(1, read), len(text) * size // max(1, read))
