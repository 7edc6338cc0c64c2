"""A RelBench database as the spec of an import: a node type per table, an edge type per foreign key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from khop.importing.packages import pa, pc, pq

ROW = "khop_row"  # id of a table without a primary key
_MOST_CATEGORIES = 64


@dataclass(frozen=True)
class RelbenchTable:
    """One table with its keys, as its Parquet file records them."""

    name: str
    rows: Any  # an Arrow table
    key: str
    links: Mapping[str, str]  # column of a foreign key -> table
    time: str | None

    @classmethod
    def read(cls, path: Path) -> RelbenchTable:
        """Read a table. ValueError for a Parquet file without RelBench's record."""
        try:
            rows = pq.read_table(path)
        except (pa.ArrowInvalid, OSError) as error:
            raise ValueError(
                f"{path}: cannot be read ({str(error).splitlines()[0]}); download it again"
            ) from None
        record = rows.schema.metadata or {}
        if b"fkey_col_to_pkey_table" not in record:
            raise ValueError(f"{path}: does not record its keys; give the folder db of a RelBench database")
        links = json.loads(record[b"fkey_col_to_pkey_table"])
        key = json.loads(record.get(b"pkey_col", b"null"))
        time = json.loads(record.get(b"time_col", b"null"))
        if key is None:
            rows = rows.append_column(ROW, pa.array(range(rows.num_rows), pa.int64()))
        return cls(path.stem, rows.replace_schema_metadata(None), key or ROW, links, time)


def relbench_spec(tables: list[RelbenchTable], val: date, test: date) -> dict[str, Any]:
    """Return the spec. Validation begins at `val`, test at `test`; times without a zone are UTC.

    Numbers, booleans, times and text become features; text with at most 64 values is a category.
    """
    nodes: dict[str, Any] = {}
    edges: dict[str, Any] = {}
    for table in tables:
        nodes[table.name] = {
            "rows": table.rows, "id": table.key, "columns": _columns(table), **_time(table),
        }  # fmt: skip
        for column, target in table.links.items():
            edges[f"{table.name} {column} {target}"] = {
                "rows": table.rows, "source": table.key, "destination": column, "nulls": "drop",
                "orphans": "drop", "reverse": f"rev-{column}", **_time(table),
            }  # fmt: skip
    cut_offs = {"val": _midnight(val), "test": _midnight(test)}
    return {"splits": {"time": cut_offs}, "nodes": nodes, "edges": edges}


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def _time(table: RelbenchTable) -> dict[str, str]:
    if table.time is None:
        return {}
    kind = table.rows.schema.field(table.time).type
    return {"time": table.time} if getattr(kind, "tz", None) else {"time": table.time, "timezone": "UTC"}


def _columns(table: RelbenchTable) -> dict[str, Any]:
    """Return the features: all columns but keys and the time."""
    taken = {table.key, table.time, *table.links}
    found = {}
    for entry in table.rows.schema:
        kind = None if entry.name in taken else _kind(entry.type, table.rows.column(entry.name))
        if kind is not None:
            found[entry.name] = kind
    return found


def _kind(dtype: Any, column: Any) -> dict[str, Any] | None:
    """Return the kind of a column; None for one that is no feature, such as lists."""
    if pa.types.is_boolean(dtype):
        return {"kind": "bool"}
    if pa.types.is_integer(dtype) or pa.types.is_floating(dtype):
        return {"kind": "number"}
    if pa.types.is_timestamp(dtype) or pa.types.is_date(dtype):
        return {"kind": "date"} if getattr(dtype, "tz", None) else {"kind": "date", "timezone": "UTC"}
    if pa.types.is_string(dtype) or pa.types.is_large_string(dtype):
        few = pc.count_distinct(column).as_py() <= _MOST_CATEGORIES
        return {"kind": "category" if few else "text"}
    return None
