"""`where` of a spec: one SQL expression over the columns of a row, evaluated by DuckDB on Arrow batches."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from threading import local
from typing import Any

import numpy as np
import numpy.typing as npt

from khop.importing.arrow_values import first_failing, numpy_of, shown
from khop.importing.csv_file import quoted
from khop.importing.packages import duckdb, pa
from khop.importing.read_spec import nearest
from khop.importing.rows import Rows

_CLASSES = {
    "BETWEEN", "CASE", "CAST", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "FUNCTION", "OPERATOR",
    "TYPE",
}  # fmt: skip
_REFUSED = {
    "LAMBDA": "a lambda",
    "PARAMETER": "a parameter",
    "STAR": "a star",
    "SUBQUERY": "a subquery",
    "WINDOW": "a window function",
}
_MACROS = {"fdiv", "fmod", "if", "list_avg", "list_max", "list_min", "list_sum", "nullif", "split_part"}
# These depend on the day or on the installation, and do not say so.
_NOT_FIXED = {"age", "current_localtime", "current_localtimestamp", "version"}
_LOCKED = (
    "SET TimeZone='UTC'",
    "SET enable_external_access=false",
    "SET python_enable_replacements=false",
    "SET lock_configuration=true",
)
_ROWS = "rows"


@dataclass(frozen=True, eq=False)
class Where:
    """A checked expression. It may be used by several threads, each with a connection of its own."""

    expression: str
    columns: tuple[str, ...]  # that it reads
    key: str
    _local: local = field(default_factory=local)

    @classmethod
    def of(cls, expression: str, schema: Any, key: str) -> Where:
        """Check an expression against the columns of a table.

        ValueError for anything but one scalar expression of deterministic functions that is true or false.
        """
        columns: dict[str, None] = {}
        for node in _nodes(_parsed(expression, key)):
            _check(node, expression, key)
            if node["class"] == "COLUMN_REF":
                columns[_column(node["column_names"], schema, key)] = None
        where = cls(expression, tuple(columns), key)
        where._check_type(schema)
        return where

    def apply(self, rows: Rows) -> Rows:
        """Return the rows for which the expression is true; null is not true."""
        if not len(rows):
            return rows
        return rows.keep(self._mask(rows))

    def _mask(self, rows: Rows) -> npt.NDArray[np.bool_]:
        chosen = rows.batch.select(list(self.columns)) if self.columns else rows.batch
        try:
            table = self._query(chosen).to_arrow_table()
        except duckdb.Error:
            row = first_failing(
                len(rows), lambda first, count: self._query(chosen.slice(first, count)).to_arrow_table()
            )
            values = ", ".join(f"{name} = {shown(chosen.column(name)[row])}" for name in self.columns)
            raise ValueError(
                f"{rows.row(row)}: {self.key}: {self.expression!r} fails for {values or 'it'}; use try_cast, "
                "or correct the row"
            ) from None
        mask: npt.NDArray[np.bool_] = numpy_of(table.column(0).combine_chunks())
        return mask

    def _query(self, batch: Any) -> Any:
        if not hasattr(self._local, "connection"):
            self._local.connection = locked_connection()
        connection = self._local.connection
        connection.register(_ROWS, batch)
        return connection.sql(f"SELECT coalesce(({self.expression}\n), false) FROM {_ROWS}")

    def _check_type(self, schema: Any) -> None:
        empty = pa.schema([schema.field(name) for name in self.columns] or [pa.field("_", pa.int8())])
        batch = pa.RecordBatch.from_arrays([pa.array([], one.type) for one in empty], schema=empty)
        try:
            connection = locked_connection()
            connection.register(_ROWS, batch)
            kind = connection.sql(f"SELECT ({self.expression}\n) FROM {_ROWS}").types[0]
        except duckdb.Error:
            types = ", ".join(f"{name} is {schema.field(name).type}" for name in self.columns)
            raise ValueError(
                f"{self.key}: {self.expression!r} does not fit the types of its columns ({types or 'none'}); "
                "columns of CSV files are text, cast them, as price::DOUBLE"
            ) from None
        if str(kind) != "BOOLEAN":
            raise ValueError(
                f"{self.key}: {self.expression!r} is {kind}: must be true or false, as kind = 'buy'"
            )


def locked_connection() -> Any:
    """Return a connection in memory that reads no file, loads no extension and keeps its settings."""
    connection = duckdb.connect(config={"threads": 1, "memory_limit": "1GB"})
    for setting in _LOCKED:
        connection.execute(setting)
    return connection


def _parsed(expression: str, key: str) -> dict[str, Any]:
    with duckdb.connect(config={"threads": 1}) as connection:
        query = f"SELECT ({expression}\n) FROM {_ROWS}"
        found: Any = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [query]).fetchone()
        answer = json.loads(found[0])
    if answer["error"]:
        found = re.search(r'at or near "(.*)"', answer["error_message"])
        near = f", near {found[1]!r}" if found and found[1] in expression else ""
        raise ValueError(f"{key}: {expression!r} is not one SQL expression{near}; write one, as kind = 'buy'")
    node = answer["statements"][0]["node"]
    is_plain = (
        len(answer["statements"]) == 1
        and node["type"] == "SELECT_NODE"
        and len(node["select_list"]) == 1
        and node["from_table"].get("table_name") == _ROWS
        and not node["where_clause"]
        and not node["modifiers"]
        and not node["cte_map"]["map"]
    )
    if not is_plain:
        raise ValueError(f"{key}: {expression!r} is more than one expression; write one, as kind = 'buy'")
    chosen: dict[str, Any] = node["select_list"][0]
    return chosen


def _nodes(tree: object) -> Iterator[dict[str, Any]]:
    """Yield the nodes of an expression."""
    match tree:
        case dict():
            if "class" in tree:
                yield tree
            for value in tree.values():
                yield from _nodes(value)
        case list():
            for value in tree:
                yield from _nodes(value)


def _check(node: dict[str, Any], expression: str, key: str) -> None:
    kind = node["class"]
    if kind not in _CLASSES:
        what = _REFUSED.get(kind, kind.lower())
        raise ValueError(f"{key}: {expression!r} has {what}: write one expression over the columns of a row")
    if kind == "FUNCTION" and not node.get("is_operator"):
        name = node["function_name"].lower()
        if name not in _deterministic():
            raise ValueError(
                f"{key}: {expression!r} calls {name}(), which is no fixed function of one row; remove it"
            )


@cache
def _deterministic() -> frozenset[str]:
    """Return the scalar functions that give the same value for the same arguments."""
    with duckdb.connect() as connection:
        found = connection.execute(
            "SELECT function_name, bool_and(function_type = 'scalar' AND stability = 'CONSISTENT') "
            "FROM duckdb_functions() GROUP BY function_name"
        ).fetchall()
    return frozenset(name for name, fixed in found if fixed and name not in _NOT_FIXED) | _MACROS


def _column(names: list[str], schema: Any, key: str) -> str:
    there = list(schema.names)
    name = names[-1] if len(names) > 1 and names[0] == _ROWS else names[0]
    found: list[str] = [one for one in there if one.lower() == name.lower()]  # SQL ignores case
    if not found:
        raise ValueError(f"{key}: no column {name!r}; {nearest(name, there)}; text needs quotes, as 'buy'")
    if len(found) > 1:
        raise ValueError(f"{key}: {quoted(name)} is one of {', '.join(found)}; rename the columns")
    return found[0]
