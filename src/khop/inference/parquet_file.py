"""Parquet files for other programs: written atomically, with the users' own ids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from khop.graph.atomic import refuse_dangling
from khop.graph.ids_by_node import IdsByNode
from khop.kernels.id_table import StringKeys


def parquet() -> ModuleType:
    """Import pyarrow, an optional dependency; ValueError says how to install it."""
    try:
        import_module("pyarrow.parquet")
    except ModuleNotFoundError:
        raise ValueError("Parquet files need pyarrow: pip install pyarrow, or write .npy") from None
    return import_module("pyarrow")


def check_new(*files: Path) -> None:
    """Raise ValueError if a file exists, or could not be written, so that errors appear before the work."""
    for file in files:
        refuse_dangling(file)
        if not file.parent.is_dir():
            raise ValueError(f"{file}: there is no folder {file.parent}")
        if file.exists():
            raise ValueError(f"{file}: exists already; remove it or choose another name")


def check_parquet(path: Path, option: str) -> None:
    """Raise ValueError unless `path` is a new Parquet file; `option` names it in the error."""
    if path.suffix != ".parquet":
        raise ValueError(f"{option} {path}: give a name that ends in .parquet")
    parquet()
    check_new(path)


def own_type(ids: IdsByNode) -> Any:  # noqa: ANN401
    """Return the pyarrow type of the users' ids."""
    return parquet().string() if ids.kind == "string" else parquet().int64()


def own_values(ids: IdsByNode, nodes: Tensor) -> list[str] | npt.NDArray[np.int64]:
    """Return the users' ids of some nodes."""
    keys = ids.at(nodes)
    return keys.strings() if isinstance(keys, StringKeys) else keys


def id_columns(ids: IdsByNode | None, nodes: Tensor, own: str, node: str) -> dict[str, Any]:
    """Return pyarrow columns of some nodes: the users' ids as `own`, if they are stored, and the nodes."""
    pyarrow = parquet()
    column = {} if ids is None else {own: pyarrow.array(own_values(ids, nodes), own_type(ids))}
    return {**column, node: pyarrow.array(nodes.numpy())}


def write_parquet(path: Path, pieces: Iterator[Mapping[str, Any]]) -> int:
    """Write pieces of columns, one row group each, and return the number of rows.

    The file appears when it is complete.
    """
    pyarrow = parquet()
    beside = path.with_name(f".{path.name}.new")
    rows, writer = 0, None
    try:
        for piece in pieces:
            table = pyarrow.table(dict(piece))
            writer = writer or pyarrow.parquet.ParquetWriter(beside, table.schema)
            writer.write_table(table)
            rows += table.num_rows
        assert writer is not None, "at least one piece"
        writer.close()
        beside.replace(path)
    finally:
        if writer is not None:
            writer.close()
        beside.unlink(missing_ok=True)
    return rows
