"""Encoder: maps a batch's columns to the input of a model's first layer, per node type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from khop.arguments import check_word
from khop.batch import Batch
from khop.kernels.sparse_column import SparseRows
from khop.models.names import parameter_name
from khop.models.node_embedding import NodeEmbedding
from khop.models.sizes import ModelSizes
from khop.models.unknown_row import UnknownRow
from khop.schema import NodeType

Encoding = Literal["none", "linear"]


class Encoder(nn.Module):
    """The input column as it is ("none"), or a linear layer of it per node type ("linear").

    Types in `sizes.embedded` have an embedding of `sizes.embedding` numbers per node, which follow those of
    the column if they have it. The output lacks types with neither. With "linear" all output rows have
    `width` numbers. `tables` holds the embeddings: `torch.nn.Embedding` if they are dense, else
    `NodeEmbedding`. With `sizes.unknown` above 0, `unknown` holds a row for new nodes of each of these types.
    """

    def __init__(
        self, sizes: ModelSizes, node_types: Sequence[NodeType], encoding: Encoding, width: int
    ) -> None:
        super().__init__()
        check_word("encoder", encoding, Encoding)
        self.column = sizes.column
        self.sparse = sizes.sparse
        self.inputs = {t: sizes.inputs[t] for t in node_types if t in sizes.inputs}
        counts = {t: sizes.embedded[t] for t in node_types if t in sizes.embedded}
        linear = encoding == "linear"
        _check_sparse(sizes, encoding, [t for t in counts if t in self.inputs])
        learned = sizes.embedding or 0
        self.tables = nn.ModuleDict({parameter_name(t): _table(t, sizes) for t in counts})
        raw = {t: self.inputs.get(t, 0) + (learned if t in counts else 0) for t in node_types}
        raw = {t: before for t, before in raw.items() if t in self.inputs or t in counts}
        self.linear = nn.ModuleDict(
            {parameter_name(t): nn.Linear(before, width) for t, before in raw.items() if linear}
        )
        rows = {t: UnknownRow(learned, sizes.unknown, sizes.numbers.get(t)) for t in counts if sizes.unknown}
        self.unknown = nn.ModuleDict({parameter_name(t): row for t, row in rows.items()})
        self.widths: Mapping[NodeType, int] = dict.fromkeys(raw, width) if linear else raw

    def forward(self, batch: Batch) -> dict[NodeType, Tensor]:
        """Return (rows, width) for each type in `widths`; a type without nodes in the batch has 0 rows."""
        return {node_type: self._rows(node_type, batch) for node_type in self.widths}

    def _rows(self, node_type: NodeType, batch: Batch) -> Tensor:
        name = parameter_name(node_type)
        embedded = self._embedded(name, batch.sample.nodes[node_type], batch) if name in self.tables else None
        column = self._column(node_type, batch) if node_type in self.inputs else None
        if embedded is not None and node_type in self.sparse:
            return self._beside_entries(self.linear[name], column, embedded)
        if embedded is None or column is None:
            rows = column if embedded is None else embedded
        else:
            rows = torch.cat([column.to(embedded.dtype), embedded], dim=1)
        assert rows is not None  # `widths` has no other types
        if name not in self.linear:
            return rows
        linear = self.linear[name]
        out: Tensor = linear(rows.to(next(linear.parameters()).dtype))
        return out

    def _beside_entries(self, linear: nn.Module, column: Tensor | None, embedded: Tensor) -> Tensor:
        """Multiply entries and embeddings by their columns of the weight."""
        weight, bias = linear.weight, linear.bias
        assert isinstance(weight, Tensor)
        assert isinstance(bias, Tensor)
        assert column is not None
        width = column.shape[1]
        out: Tensor = F.linear(column.to(weight.dtype), weight[:, :width], bias)
        return out + F.linear(embedded.to(weight.dtype), weight[:, width:])

    def _embedded(self, name: str, ids: Tensor, batch: Batch) -> Tensor:
        rows: Tensor = self.tables[name](ids)
        return self.unknown[name](rows, ids, batch) if name in self.unknown else rows

    def _column(self, node_type: NodeType, batch: Batch) -> Tensor:
        if self.column not in batch.columns.get(node_type, {}):
            raise ValueError(
                f"column {self.column!r} of {node_type!r}: the model reads it, the batch does not have it; "
                f"give the loader columns=[{self.column!r}]"
            )
        column, width = batch.columns[node_type][self.column], self.inputs[node_type]
        return SparseRows.of(column, width) if node_type in self.sparse else column.reshape(-1, width)


def _check_sparse(sizes: ModelSizes, encoding: Encoding, embedded: Sequence[NodeType]) -> None:
    for node_type in embedded:
        if node_type in sizes.sparse and encoding == "none":
            raise ValueError(
                f"column {sizes.column!r} of {node_type!r} is sparse, and the type has embeddings too: give "
                'encoder="linear", which multiplies both'
            )


def _table(node_type: NodeType, sizes: ModelSizes) -> nn.Module:
    count, width, numbers = sizes.embedded[node_type], sizes.embedding or 0, sizes.numbers.get(node_type)
    if sizes.embedding_update != "dense":
        return NodeEmbedding(count, width, sizes.embedding_update, numbers)
    table = nn.Embedding(count, width)
    # A row as a whole has size 1, not each of its numbers: many rows are added up.
    nn.init.normal_(table.weight, std=width**-0.5)
    if numbers is not None:
        table.weight = nn.Parameter(table.weight.detach()[numbers])
    return table
