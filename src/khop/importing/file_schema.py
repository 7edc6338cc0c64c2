"""Several files as one table: their names, and the columns that all of them have, with the same types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from khop.importing.packages import pa

NamedPath = tuple[str, Path]


@dataclass(frozen=True, eq=False)
class FileTable:
    """Files of one format and the columns that all of them have."""

    files: Sequence[NamedPath]
    schema: Any
    lacking: Mapping[str, str]  # by column that not all files have: the first file without it
    key: str

    @property
    def name(self) -> str:
        """The first file, and the number of others."""
        more = f" and {len(self.files) - 1} more" if len(self.files) > 1 else ""
        return f"{self.files[0][0]}{more}"

    @property
    def num_bytes(self) -> int:
        """Size of the files."""
        return total_bytes(self.files)


def same_schema(schemas: Sequence[tuple[str, Any]], key: str) -> tuple[Any, dict[str, str]]:
    """Return the columns that all files have, and for each other column the first file without it.

    Numbers have the widest of their types in the files. ValueError if a column has different types, or if a
    file has it twice.
    """
    for name, schema in schemas:
        if twice := [column for column in schema.names if schema.names.count(column) > 1]:
            raise ValueError(f"{key}: {name}: the column {twice[0]!r} is there twice; rename one")
    first_name, first = schemas[0]
    for name, other in schemas[1:]:
        for field in other:
            at = first.get_field_index(field.name)
            if at >= 0 and not _compatible(first.field(at).type, field.type):
                raise ValueError(
                    f"{key}: column {field.name!r} is {first.field(at).type} in {first_name} and "
                    f"{field.type} in {name}; convert one of the files"
                )
    columns = dict.fromkeys(column for _, schema in schemas for column in schema.names)
    without = {c: [name for name, schema in schemas if c not in schema.names] for c in columns}
    everywhere = [column for column in columns if not without[column]]
    merged = pa.schema([(name, _widest([s.field(name).type for _, s in schemas])) for name in everywhere])
    return merged, {column: names[0] for column, names in without.items() if names}


def total_bytes(files: Sequence[NamedPath]) -> int:
    """Return the size of the files."""
    return sum(path.stat().st_size for _, path in files)


def _widest(types: list[Any]) -> Any:
    """Return a type that holds all of these: the only one, or the widest integer or float."""
    if len(set(types)) == 1:
        return types[0]
    widest = {"integer": pa.int64(), "float": pa.float64()}
    return widest.get(_kind(types[0]) or "", types[0])


def _compatible(left: Any, right: Any) -> bool:
    if _kind(left) is not None:
        return bool(_kind(left) == _kind(right))
    return bool(left == right)


def _kind(dtype: Any) -> str | None:
    """Return the group of types that differ only in their width or encoding."""
    if pa.types.is_dictionary(dtype):
        return _kind(dtype.value_type)
    if pa.types.is_integer(dtype):
        return "integer"
    if pa.types.is_floating(dtype):
        return "float"
    if pa.types.is_string(dtype) or pa.types.is_large_string(dtype) or pa.types.is_string_view(dtype):
        return "string"
    return "null" if pa.types.is_null(dtype) else None
