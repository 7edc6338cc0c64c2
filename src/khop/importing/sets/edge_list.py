"""Edge lists: two ids per line, separated by a tab, space, comma or semicolon, and maybe a weight."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from khop.importing.packages import pa, pa_csv
from khop.importing.sets.read_edges import ReadEdges
from khop.kernels.id_table import StringKeys, id_table

WEIGHT = "weight"
_COMMENTS = (b"#", b"%", b"//")
_SEPARATORS = (b"\t", b",", b";", b" ")


@dataclass(frozen=True)
class _Form:
    """The form of a file: comments before the edges, separator, fields of a line."""

    comments: int
    separator: str
    fields: int


def edge_list(path: Path) -> ReadEdges:
    """Read an edge list, also .gz. Lines at its beginning with #, % or // are comments.

    Ids are whole numbers if all are, else text. A third field of numbers is the edge column `weight`.
    ValueError names the first line that is no edge.
    """
    form = _form(path)
    try:
        table = _table(path, form, {})
    except pa.ArrowInvalid:
        # Ids that look like numbers at first, and are text later.
        try:
            table = _table(path, form, {"0": pa.string(), "1": pa.string()})
        except pa.ArrowInvalid as error:
            line = str(error).splitlines()[0]
            raise ValueError(f"{path}: cannot be read ({line}); each line has the same fields") from None
    ends = [table.column(name) for name in ("0", "1")]
    if any(column.null_count for column in ends):
        raise ValueError(f"{path}: an edge has an empty id; correct it")
    if not all(pa.types.is_integer(column.type) for column in ends):
        if any(pa.types.is_integer(column.type) for column in ends):
            table = _table(path, form, {"0": pa.string(), "1": pa.string()})
        return _read([table.column(name).cast(pa.string()).to_pylist() for name in ("0", "1")], table, path)
    return _read([column.to_numpy() for column in ends], table, path)


def _read(ends: list[Any], table: Any, path: Path) -> ReadEdges:
    pairs = np.stack([np.asarray(end, object) if isinstance(end, list) else end for end in ends], axis=1)
    flat = pairs.reshape(-1)
    is_text = flat.dtype == object
    ids = id_table("string" if is_text else "int64", 0)
    keys = StringKeys.of(flat.tolist()) if is_text else np.ascontiguousarray(flat, np.int64)
    rows = np.asarray(ids.add(keys)).astype(np.int64).reshape(-1, 2)
    known = ids.keys(np.arange(len(ids), dtype=np.int64))
    return ReadEdges(known, rows[:, 0].copy(), rows[:, 1].copy(), edge_columns=_weights(table, path))


def _weights(table: Any, path: Path) -> dict[str, npt.NDArray[Any]]:
    if table.num_columns < 3:
        return {}
    column = table.column("2")
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)) or column.null_count:
        raise ValueError(f"{path}: the third field of a line is no number; remove it")
    return {WEIGHT: column.to_numpy().astype(np.float32)}


def _table(path: Path, form: _Form, kinds: dict[str, Any]) -> Any:
    with pa.input_stream(str(path), compression="detect") as stream:
        return pa_csv.read_csv(
            stream,
            read_options=pa_csv.ReadOptions(
                skip_rows=form.comments, column_names=[str(field) for field in range(form.fields)]
            ),
            parse_options=pa_csv.ParseOptions(delimiter=form.separator),
            convert_options=pa_csv.ConvertOptions(column_types=kinds, strings_can_be_null=True),
        )


def _form(path: Path) -> _Form:
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rb") as file:
            for number, line in enumerate(file):
                if line.strip() and not line.startswith(_COMMENTS):
                    return _form_of(line.strip(), number, path)
    except (OSError, EOFError) as error:
        raise ValueError(f"{path}: cannot be read ({error}); correct it") from None
    raise ValueError(f"{path}: has no edges")


def _form_of(line: bytes, number: int, path: Path) -> _Form:
    separator = next((one for one in _SEPARATORS if one in line), None)
    fields = 0 if separator is None else line.count(separator) + 1
    if separator is None or not 2 <= fields <= 3:
        raise ValueError(
            f"{path}, line {number + 1}: has {fields or 1} fields; an edge has two ids and maybe a weight; "
            "import other tables by a spec (docs/import.md)"
        )
    return _Form(number, separator.decode(), fields)
