"""Output files for other programs: .npy with ids in a second file, or Parquet with ids and names."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from khop.graph.ids_by_node import IdsByNode
from khop.graph.npy import write_array
from khop.inference.parquet_file import check_new, own_type, own_values, parquet
from khop.runtime.group import Group
from khop.schema import NodeType

_ENDINGS = (".npy", ".parquet")
_GROUP_BYTES = 32 << 20  # size of a row group


@dataclass(frozen=True)
class RowOutput:
    """One file with the rows of a node type."""

    path: Path
    node_type: NodeType
    column: str  # name of the rows' column in Parquet
    count: int
    nodes: Tensor | None  # int64 (count); None: all nodes, in order
    original_ids: IdsByNode | None  # for Parquet; None if the graph has none
    own_ids: IdsByNode | None = None  # the user's ids, for Parquet; None if the graph stores none

    @property
    def ids_path(self) -> Path:
        """Path of the ids of a .npy file's rows."""
        return self.path.with_name(f"{self.path.stem}.ids.npy")

    @property
    def files(self) -> tuple[Path, ...]:
        """Files that exist after writing."""
        return (self.path,) if self.path.suffix == ".parquet" else (self.path, self.ids_path)

    def of_rank(self, rank: int, first: int, count: int) -> RowOutput:
        """Return the output of `count` rows from `first` on, which a rank has computed."""
        path = self.path.with_name(f"{self.path.stem}.rank-{rank}{self.path.suffix}")
        rows = slice(first, first + count)
        nodes = torch.arange(rows.start, rows.stop) if self.nodes is None else self.nodes[rows]
        return replace(self, path=path, count=count, nodes=nodes)

    def check(self) -> None:
        """Raise ValueError if the file could not be written, so that errors appear before the computation."""
        if self.path.suffix not in _ENDINGS:
            raise ValueError(f"{self.path}: give a name that ends in {' or '.join(_ENDINGS)}")
        if self.path.suffix == ".parquet":
            parquet()
        check_new(*self.files)

    def write(self, rows: Tensor, file: Path, group: Group) -> None:
        """Write rows that are mapped from the .npy file `file`, atomically. Collective."""
        if self.path.suffix == ".parquet":
            self._write_parquet(rows, file.with_suffix(".parquet"), group)
        elif group.rank == 0:
            ids = file.with_suffix(".ids")
            write_array(ids, "int64", (self.count,), self._ids(1 << 20), lambda size: None)
            ids.rename(self.ids_path)
            file.rename(self.path)
        group.barrier()

    def _write_parquet(self, rows: Tensor, file: Path, group: Group) -> None:
        size = max(1, _GROUP_BYTES // max(1, rows[:1].nbytes))
        pieces = _pieces(self.count, size)
        if group.rank > 0:
            for _ in pieces:
                group.barrier()  # writing takes longer than the time-out of a rank that waits silently
            return
        pyarrow = parquet()
        schema = pyarrow.schema(self._fields(pyarrow, rows))
        with pyarrow.parquet.ParquetWriter(file, schema) as writer:
            for piece in pieces:
                writer.write_table(pyarrow.table(self._arrays(pyarrow, schema, rows, piece), schema=schema))
                group.barrier()
        file.rename(self.path)

    def _fields(self, pyarrow: ModuleType, rows: Tensor) -> list[object]:
        number = pyarrow.from_numpy_dtype(rows[:0].numpy().dtype)
        names = ["node"] if self.original_ids is None else ["node", "original_id"]
        own = [] if self.own_ids is None else [pyarrow.field("id", own_type(self.own_ids), nullable=False)]
        return [
            *own,
            *(pyarrow.field(name, pyarrow.int64(), nullable=False) for name in names),
            pyarrow.field(self.column, pyarrow.list_(number, math.prod(rows.shape[1:]))),
        ]

    def _arrays(
        self,
        pyarrow: ModuleType,
        schema: Any,  # noqa: ANN401
        rows: Tensor,
        piece: slice,
    ) -> list[object]:
        ids = self._ids_of(piece)
        flat = pyarrow.array(rows[piece].reshape(-1).numpy())
        of_rows = pyarrow.FixedSizeListArray.from_arrays(flat, type=schema.field(self.column).type)
        original = [] if self.original_ids is None else [pyarrow.array(self.original_ids.at(ids))]
        own = [] if self.own_ids is None else [pyarrow.array(own_values(self.own_ids, ids))]
        return [*own, pyarrow.array(ids.numpy()), *original, of_rows]

    def _ids(self, size: int) -> Iterator[npt.NDArray[np.int64]]:
        for piece in _pieces(self.count, size):
            yield self._ids_of(piece).numpy()

    def _ids_of(self, piece: slice) -> Tensor:
        return torch.arange(piece.start, piece.stop) if self.nodes is None else self.nodes[piece]


def _pieces(count: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]
