"""Columns of a loader: names by type, and deferred columns, which the model gathers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import torch
from torch import Tensor

from khop.arguments import as_mapping, instance_of
from khop.batch import Batch
from khop.errors import Unsupported
from khop.graph.features.store import FeatureStore, Rows
from khop.graph.features.table import column_of
from khop.kernels.lazy_rows import RowsById, is_readable
from khop.loading.device.placed_stores import PlacedStores
from khop.schema import EdgeType, NodeType, Schema, Type, type_of

Names = tuple[str, ...]
NamesByType = Mapping[NodeType | EdgeType, Sequence[str]]


class Narrow(StrEnum):
    """Output dtype of narrow columns: float16, bfloat16 and quantized ones."""

    FLOAT32 = "float32"  # converted during the gather, for models on the CPU
    STORED = "stored"  # fewer bytes to copy to a device, which converts them


class Gather(StrEnum):
    """Time at which rows of input columns are gathered."""

    AHEAD = "ahead"  # with the batch, before the model needs it
    DEFERRED = "deferred"  # by the model: a first layer that aggregates them reads the table itself


@dataclass(frozen=True)
class ColumnChoice:
    """The columns of every batch, by type; the graph has all of them."""

    of_nodes: Mapping[NodeType, Names] = field(default_factory=dict)
    of_edges: Mapping[EdgeType, Names] = field(default_factory=dict)
    of_seeds: Mapping[NodeType, Names] = field(default_factory=dict)
    as_float32: Mapping[Type, frozenset[str]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        schema: Schema,
        columns: Sequence[str] | NamesByType,
        seed_columns: Sequence[str] | NamesByType,
        seed_types: Sequence[NodeType],
        narrow: Narrow = Narrow.FLOAT32,
    ) -> ColumnChoice:
        """Check the requested columns. A plain list applies to each node (or seed) type with the column."""
        asked = _by_type(schema, columns, schema.node_types, "columns")
        asked_of_seeds = _by_type(schema, seed_columns, seed_types, "seed_columns")
        for type_ in asked_of_seeds:
            if type_ not in seed_types:
                raise ValueError(f"seed_columns of {type_!r}: the seeds are of {list(seed_types)}")
        types = {**asked, **asked_of_seeds} if Narrow(narrow) is Narrow.FLOAT32 else {}
        widened = {t: _narrow_columns(schema, t) for t in types}
        return cls(
            {t: names for t, names in asked.items() if isinstance(t, str)},
            {t: names for t, names in asked.items() if isinstance(t, tuple)},
            {t: names for t, names in asked_of_seeds.items() if isinstance(t, str)},
            {t: names for t, names in widened.items() if names},
        )

    @property
    def is_empty(self) -> bool:
        """True if there are no columns to gather."""
        return not (self.of_nodes or self.of_edges or self.of_seeds)


def _by_type(
    schema: Schema, asked: Sequence[str] | NamesByType, types: Sequence[NodeType], what: str
) -> dict[NodeType | EdgeType, Names]:
    """Return the names of each type without duplicates; a plain list applies to `types`."""

    def where_they_are(names: Sequence[str]) -> dict[NodeType, Names]:
        there = {t: schema.columns.get(t, {}) for t in types}
        for name in _list_of_names(names, what):
            if not any(name in columns for columns in there.values()):
                known = {t: sorted(columns) for t, columns in there.items()}
                raise ValueError(f"{what}: no node type has a column {name!r}; there are {known}")
        return {t: tuple(name for name in names if name in columns) for t, columns in there.items()}

    named = {type_of(schema, t): names for t, names in as_mapping(asked, where_they_are).items()}
    return {t: _names(schema, t, names, what) for t, names in named.items() if names}


def _names(schema: Schema, type_: NodeType | EdgeType, names: Sequence[str], what: str) -> Names:
    for name in _list_of_names(names, what):
        instance_of(f"{what} of {type_!r}:", name, str, "must be names of columns, as text")
        schema.column(type_, name)
    return tuple(dict.fromkeys(names))


def _list_of_names(given: Sequence[str], what: str) -> Sequence[str]:
    if isinstance(given, str) or not isinstance(given, Collection):
        example = [given] if isinstance(given, str) else ["x"]
        raise ValueError(f"{what} {given!r}: give a list of names, {example}")
    return given


def _narrow_columns(schema: Schema, type_: Type) -> frozenset[str]:
    return frozenset(name for name, spec in schema.columns.get(type_, {}).items() if spec.is_narrow)


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

    If requested, node columns of float32, float64 or bfloat16 in a single table in device memory are
    deferred. Others, such as columns in pinned memory or narrower ones to convert, are gathered.
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
    return table if isinstance(table, Tensor) and is_readable(column, device) else None
