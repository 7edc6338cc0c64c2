"""Checks and pieces that tables of all databases share: their rows have the order of a unique column."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from khop.importing.csv_file import quoted
from khop.importing.read_spec import nearest
from khop.importing.rows import Piece, Place, Rows


def check_table(table: str, there: Sequence[str], database: str, key: str) -> None:
    """Raise ValueError unless the database has the table."""
    if table not in there:
        raise ValueError(f"{key}: {database}: no table {table!r}; {nearest(table, there)}")


def check_order(
    order_by: str, columns: Sequence[str], counts: Callable[[str], tuple[int, int]], name: str, key: str
) -> int:
    """Return the rows of a table, if `order_by` is a column with another value in each; else ValueError.

    `counts` returns the rows and the different values of a column, whose name is quoted.
    """
    if order_by not in columns:
        raise ValueError(f"{key}: order_by: no column {order_by!r} in {name}; {nearest(order_by, columns)}")
    rows, distinct = counts(quoted(order_by))
    if rows != distinct:
        raise ValueError(
            f"{key}: order_by {order_by!r} of {name} has {distinct:,} values in {rows:,} rows, so rows have "
            "no fixed order; give a unique column"
        )
    return rows


def batches_as_pieces(batches: Iterable[Any], name: str) -> Iterator[Piece]:
    """Yield record batches, which come in order and have been read already."""
    first = 0
    for batch in batches:
        yield partial(Rows, batch, Place(name, None, first))
        first += batch.num_rows


def first_line(error: BaseException) -> str:
    """Return the first line of a driver's message."""
    return next(iter(str(error).splitlines()), type(error).__name__)
