"""Small CSV tables with a header, such as the lists of node types of a set."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path


def csv_table(path: Path) -> dict[str, list[str]]:
    """Return the text of each column by its name. ValueError for a file that is missing or damaged."""
    rows = csv_rows(path)
    if len(rows) < 2:
        raise ValueError(f"{path}: has {len(rows)} rows, and a header and values are expected")
    return {name: [row[at] for row in rows[1:]] for at, name in enumerate(rows[0])}


def csv_rows(path: Path) -> list[list[str]]:
    """Return the fields of all rows, the first one included. The rows have the same number of fields."""
    if not path.is_file():
        raise ValueError(f"{path}: no such file; give the folder as it was published")
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read ({error}); download it again") from None
    if any(len(row) != len(rows[0]) for row in rows):
        raise ValueError(f"{path}: rows have different numbers of fields; download it again")
    return rows
