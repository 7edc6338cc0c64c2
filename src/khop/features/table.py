"""Columns that lie in this process: in memory or mapped from a graph folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from khop.features.store import Gathered, Rows, Wanted
from khop.kernels.gather import SMALL_DTYPES, Column, column_reference, gather_columns
from khop.schema import EdgeType, NodeType, Schema

Tensors = Mapping[NodeType | EdgeType, Mapping[str, Tensor]]


@dataclass(frozen=True, eq=False)
class FeatureTable:
    """A feature store over whole columns, `type -> name -> (rows, ...)`, edge columns in CSC order.

    Gathering only reads, so threads may share a table. The result does not depend on `threads`.
    """

    columns: Tensors
    threads: int = 1  # of one gather
    scales: Tensors = field(default_factory=dict)  # of quantised columns: float32, of a row's shape

    @classmethod
    def of(cls, schema: Schema, columns: Tensors, threads: int = 1) -> FeatureTable:
        """The columns of a graph, with the scales that its schema knows."""
        scales = {
            type_: {
                name: torch.tensor(spec.scales, dtype=torch.float32, device=column.device).view(spec.shape)
                for name, spec in specs.items()
                if spec.scales is not None and (column := columns.get(type_, {}).get(name)) is not None
            }
            for type_, specs in schema.columns.items()
        }
        return cls(columns, threads, scales)

    def gather(self, wanted: Wanted) -> Gathered:
        """The rows of all columns wanted, in the order of the ids; ValueError names what is missing."""
        return {type_: self._rows(type_, rows) for type_, rows in wanted.items()}

    def known(self, type_: NodeType | EdgeType, rows: Rows) -> dict[str, Tensor]:
        """As `gather` of one type, by ids that are known to be rows of it: a GPU is not waited for."""
        return {name: column_reference(self._column(type_, name, rows), rows.ids) for name in rows.columns}

    def _rows(self, type_: NodeType | EdgeType, rows: Rows) -> dict[str, Tensor]:
        if type_ not in self.columns:
            raise ValueError(f"no columns of type {type_!r}; there are columns of {list(self.columns)}")
        gathered = gather_columns(
            [self._column(type_, name, rows) for name in rows.columns], rows.ids, threads=self.threads
        )
        return dict(zip(rows.columns, gathered, strict=True))

    def _column(self, type_: NodeType | EdgeType, name: str, rows: Rows) -> Column:
        columns = self.columns[type_]
        if name not in columns:
            raise ValueError(f"no column {name!r} of {type_!r}; there are {sorted(columns)}")
        table, scales = columns[name], self.scales.get(type_, {}).get(name)
        is_narrow = table.dtype.is_floating_point or scales is not None
        widened = name in rows.as_float32 and is_narrow and table.dtype in SMALL_DTYPES
        what = f"column {name!r} of {type_!r}: row"
        return Column(table, what, rows.limits.get(name), widened, scales if widened else None)
