"""Columns of nodes that kernels of a device gather, once the sample is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from torch import Tensor

from khop.features.store import Rows
from khop.features.table import FeatureTable
from khop.kernels.gather import Column, Copies, gather_columns
from khop.loading.cache_counts import nodes_in_cache
from khop.loading.columns import ColumnChoice, Names
from khop.loading.placed_stores import PlacedStores
from khop.loading.source import Drawn
from khop.schema import NodeType, Schema

CopiesByColumn = Mapping[tuple[NodeType, str], Copies]


@dataclass(frozen=True, eq=False)
class DeviceColumns:
    """The columns of a loader that kernels of a device read, some rows of them from copies."""

    stores: PlacedStores
    schema: Schema
    choice: ColumnChoice  # of these columns alone
    copies: CopiesByColumn

    @cached_property
    def in_cache(self) -> dict[tuple[NodeType, str], Tensor]:
        """On the host for each column with copies, bool (nodes), the rows that have one."""
        return nodes_in_cache(self.copies)

    @cached_property
    def _features(self) -> FeatureTable:
        return self.stores.features(self.schema)  # scales are copied to the device once

    def add(self, drawn: Drawn) -> Drawn:
        """Gather the columns of a sample on the device, in the current stream. The host does not wait."""
        columns = {t: dict(of_type) for t, of_type in drawn.columns.items()}
        seed_columns = {t: dict(of_type) for t, of_type in drawn.seed_columns.items()}
        for node_type, names in self.choice.of_nodes.items():
            columns.setdefault(node_type, {}).update(
                self._gathered(node_type, names, drawn.sample.nodes[node_type])
            )
        for node_type, names in self.choice.of_seeds.items():
            seed_columns.setdefault(node_type, {}).update(
                self._gathered(node_type, names, drawn.seed_nodes[node_type])
            )
        return replace(drawn, columns=columns, seed_columns=seed_columns)

    def _gathered(self, node_type: NodeType, names: Names, ids: Tensor) -> dict[str, Tensor]:
        widened = self.choice.as_float32.get(node_type, frozenset())
        rows = Rows(ids, names, as_float32=widened)
        columns = [self._column(node_type, name, rows) for name in names]
        return dict(zip(names, gather_columns(columns, ids), strict=True))

    def _column(self, node_type: NodeType, name: str, rows: Rows) -> Column:
        column = self._features.column(node_type, name, rows)
        return replace(column, copies=self.copies.get((node_type, name)))


def split_choice(choice: ColumnChoice, stores: PlacedStores) -> tuple[ColumnChoice, ColumnChoice]:
    """Divide a choice into the columns that the CPU gathers, and those that kernels of the device read."""
    parts = []
    for on_device in (False, True):
        of_nodes, of_seeds = (
            {t: tuple(name for name in names if stores.reads(name) is on_device) for t, names in of.items()}
            for of in (choice.of_nodes, choice.of_seeds)
        )
        parts.append(
            ColumnChoice(
                {t: names for t, names in of_nodes.items() if names},
                {} if on_device else choice.of_edges,
                {t: names for t, names in of_seeds.items() if names},
                choice.as_float32,
            )
        )
    return parts[0], parts[1]
