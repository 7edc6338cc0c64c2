"""Files of a table: paths from globs in the order of their bytes, and their formats."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from glob import glob, has_magic
from itertools import pairwise
from pathlib import Path

from khop.importing.arrow_file import ArrowTable
from khop.importing.csv_file import CsvTable, Dialect
from khop.importing.json_file import JsonTable
from khop.importing.parquet_file import ParquetTable
from khop.importing.read_spec import nearest
from khop.importing.rows import Table

FORMATS = {
    ".parquet": "parquet", ".pq": "parquet",
    ".csv": "csv", ".csv.gz": "csv", ".csv.zst": "csv", ".tsv": "csv", ".tsv.gz": "csv", ".tsv.zst": "csv",
    ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow",
    ".jsonl": "json", ".ndjson": "json", ".json": "json", ".jsonl.gz": "json", ".ndjson.gz": "json",
    ".json.gz": "json",
}  # fmt: skip


@dataclass(frozen=True)
class InputFile:
    """A file of the input."""

    name: str  # as the spec gives it; for errors
    path: Path


def find_files(patterns: Sequence[str], folder: Path, key: str) -> list[InputFile]:
    """Return the files of paths and globs, sorted by the bytes of their names.

    ValueError for a pattern without a file, a file given twice, and a file that cannot be read.
    """
    names = [name for pattern in patterns for name in _matches(pattern, folder, key)]
    names.sort(key=os.fsencode)
    for one, other in pairwise(names):
        if one == other:
            raise ValueError(f"{key}: {one} is named twice; its rows would be read twice, name it once")
    files = [InputFile(name, folder / name) for name in names]
    for file in files:
        if not os.access(file.path, os.R_OK):
            raise ValueError(f"{key}: {file.name}: no permission to read it; chmod u+r {file.path}")
    return files


def open_files(files: Sequence[InputFile], dialect: Dialect, key: str, format: str | None = None) -> Table:
    """Open files of one format as a table; without `format`, their extensions tell it."""
    formats = {format or _format(file.name, key) for file in files}
    if len(formats) > 1:
        raise ValueError(f"{key}: files of several formats, {', '.join(sorted(formats))}; convert to one")
    opened: dict[str, Callable[[], Table]] = {
        "parquet": lambda: ParquetTable.open([(f.name, f.path) for f in files], key),
        "csv": lambda: CsvTable.open([(f.name, f.path) for f in files], dialect, key),
        "arrow": lambda: ArrowTable.open([(f.name, f.path) for f in files], key),
        "json": lambda: JsonTable.open([(f.name, f.path) for f in files], key),
    }
    return opened[formats.pop()]()


def _matches(pattern: str, folder: Path, key: str) -> list[str]:
    if has_magic(pattern) and not (folder / pattern).exists():
        found = [name for name in glob(pattern, root_dir=folder, recursive=True) if (folder / name).is_file()]
        if not found:
            raise ValueError(f"{key}: no file matches {pattern!r} in {folder}; {_near(pattern, folder)}")
        return found
    path = folder / pattern
    if path.is_dir():
        raise ValueError(f'{key}: {pattern} is a folder; name its files, as "{pattern}/*.parquet"')
    if not path.exists():
        raise ValueError(f"{key}: {pattern}: no such file in {folder}; {_near(pattern, folder)}")
    if not path.is_file():
        raise ValueError(f"{key}: {pattern} is not a regular file, and is read twice; save it as one")
    return [pattern]


def _near(pattern: str, folder: Path) -> str:
    """Return a hint to files with similar names."""
    parent = (folder / pattern).parent
    names = sorted(entry.name for entry in parent.iterdir()) if parent.is_dir() else []
    return nearest(Path(pattern).name, names) if parent.is_dir() else f"there is no folder {parent}"


def _format(name: str, key: str) -> str:
    lower = name.lower()
    for suffix, kind in FORMATS.items():
        if lower.endswith(suffix):
            return kind
    endings = ", ".join(FORMATS)
    raise ValueError(f'{key}: {name}: unknown format; give files that end in {endings}, or format = "csv"')
