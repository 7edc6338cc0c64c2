"""Tables of a DGL CSVDataset: columns of numbers, and of lists of numbers as text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from khop.importing.packages import pa, pa_csv

Columns = dict[str, npt.NDArray[Any]]


def dgl_table(path: Path, separator: str, graph_id: str) -> Columns:
    """Return the columns of a CSV file: int64, float32, bool, or lists as float32 (rows, numbers).

    ValueError for a file with several graphs, and for a field that is no number.
    """
    try:
        table = pa_csv.read_csv(path, parse_options=pa_csv.ParseOptions(delimiter=separator))
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file; meta.yaml names it") from None
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path}: cannot be read ({str(error).splitlines()[0]}); correct it") from None
    if graph_id in table.column_names:
        ids = table.column(graph_id).unique()
        if len(ids) > 1:
            raise ValueError(f"{path}: holds {len(ids)} graphs; datasets of one graph are imported")
        table = table.drop_columns([graph_id])
    names = [name for name in table.column_names if name and not name.startswith("Unnamed")]
    return {name: _values(table.column(name), f"{path}, column {name}") for name in names}


def _values(column: Any, where: str) -> npt.NDArray[Any]:
    if column.null_count:
        raise ValueError(f"{where}: has {column.null_count:,} empty fields; fill them")
    if pa.types.is_string(column.type):
        return _lists(column.to_pylist(), where)
    values: npt.NDArray[Any] = column.to_numpy()
    return values.astype(np.float32) if np.issubdtype(values.dtype, np.floating) else values


def _lists(texts: list[str], where: str) -> npt.NDArray[Any]:
    width = texts[0].count(",") + 1 if texts else 1
    made = np.empty((len(texts), width), np.float32)
    for row, text in enumerate(texts):
        numbers = [part for part in text.strip(" []()").split(",") if part.strip()]
        try:
            parsed = [float(number) for number in numbers]
        except ValueError:
            parsed = []
        if len(parsed) != width:
            raise ValueError(f"{where}, row {row + 2}: {text!r} is no list of {width} numbers; correct it")
        made[row] = parsed
    return made
