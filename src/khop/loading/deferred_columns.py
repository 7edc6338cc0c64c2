"""Columns of nodes that a batch has by id: the model gathers rows where it needs them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from khop.batch import Batch
from khop.errors import Unsupported
from khop.features.store import FeatureStore, Rows
from khop.features.table import column_of
from khop.kernels.rows_by_id import RowsById, is_readable
from khop.loading.columns import ColumnChoice, Gather
from khop.loading.placed_stores import PlacedStores
from khop.schema import NodeType

Tables = Mapping[NodeType, Mapping[str, Tensor]]


@dataclass(frozen=True, eq=False)
class DeferredColumns:
    """Tables on the device of the batches, by node type and name."""

    tables: Tables

    def added_to(self, batch: Batch) -> Batch:
        """Return a batch with rows of the tables for its nodes. Nothing is gathered."""
        return replace(batch, columns=self._beside(batch, {}))

    def added_to_padded(self, batch: Batch, live: Mapping[NodeType, Tensor]) -> Batch:
        """Return a batch of static shape with rows of the tables; rows behind `live` are 0."""
        return replace(batch, columns=self._beside(batch, live))

    def _beside(self, batch: Batch, live: Mapping[NodeType, Tensor]) -> dict[NodeType, dict[str, Tensor]]:
        columns = {t: dict(of_type) for t, of_type in batch.columns.items()}
        for node_type, of_type in self.tables.items():
            ids, count = batch.sample.nodes[node_type], live.get(node_type)
            rows = {name: RowsById(table, ids, count) for name, table in of_type.items()}
            columns[node_type] = {**columns.get(node_type, {}), **rows}
        return columns


NOTHING_DEFERRED = DeferredColumns({})


def split_deferred(
    choice: ColumnChoice,
    gather: Gather,
    features: FeatureStore,
    stores: PlacedStores | None,
    device: torch.device,
) -> tuple[ColumnChoice, DeferredColumns]:
    """Divide a choice into the columns that are gathered ahead, and those that batches have by id.

    Deferred are, if asked for, columns of nodes with rows of float32, float64 or bfloat16 numbers, in one
    table in the memory of the device. Others, as in pinned memory or narrower ones to convert, are gathered.
    """
    if gather is Gather.AHEAD:
        return choice, NOTHING_DEFERRED
    found = {
        t: {
            name: table
            for name in names
            if (table := _table(choice, t, name, features, stores, device)) is not None
        }
        for t, names in choice.of_nodes.items()
    }
    remaining = {
        t: tuple(name for name in names if name not in found[t]) for t, names in choice.of_nodes.items()
    }
    ahead = replace(choice, of_nodes={t: names for t, names in remaining.items() if names})
    return ahead, DeferredColumns({t: of_type for t, of_type in found.items() if of_type})


def _table(
    choice: ColumnChoice,
    node_type: NodeType,
    name: str,
    features: FeatureStore,
    stores: PlacedStores | None,
    device: torch.device,
) -> Tensor | None:
    """Return the table of a column if its rows can be deferred."""
    if stores is not None and stores.reads(name):
        table = stores.columns[node_type][name]
    else:
        try:
            table = features.whole_columns()[node_type][name]
        except Unsupported:
            return None
        if len(features.resident_rows(node_type)) < table.shape[0]:
            return None  # on disk
    widened = choice.as_float32.get(node_type, frozenset())
    rows = Rows(torch.empty(0, dtype=torch.int64), (name,), as_float32=widened)
    is_pinned = stores is not None and name in stores.plan.pinned_columns
    column = replace(column_of(table, node_type, name, rows, None), is_pinned=is_pinned)
    return table if is_readable(column, device) else None
