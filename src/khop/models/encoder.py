"""Encoder: maps a batch's columns to the input of a model's first layer, per node type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from torch import Tensor, nn

from khop.arguments import check_word
from khop.batch import Batch
from khop.models.names import parameter_name
from khop.models.node_embedding import NodeEmbedding
from khop.models.sizes import ModelSizes
from khop.schema import NodeType

Encoding = Literal["none", "linear"]


class Encoder(nn.Module):
    """The input column as it is ("none"), or a linear layer of it per node type ("linear").

    Types without the column have an embedding of `sizes.embedding` numbers per node if that is above 0;
    otherwise the output lacks them. With "linear" all output rows have `width` numbers. `tables` holds the
    embeddings: `torch.nn.Embedding` if they are dense, else `NodeEmbedding`.
    """

    def __init__(
        self, sizes: ModelSizes, node_types: Sequence[NodeType], encoding: Encoding, width: int
    ) -> None:
        super().__init__()
        check_word("encoder", encoding, Encoding)
        self.column = sizes.column
        self.inputs = {t: sizes.inputs[t] for t in node_types if t in sizes.inputs}
        counts = {t: sizes.embedded[t] for t in node_types if t in sizes.embedded}
        linear = encoding == "linear"
        learned = sizes.embedding or 0
        self.tables = nn.ModuleDict({parameter_name(t): _table(n, sizes) for t, n in counts.items()})
        raw = {t: self.inputs.get(t, learned) for t in node_types if t in self.inputs or t in counts}
        self.linear = nn.ModuleDict(
            {parameter_name(t): nn.Linear(before, width) for t, before in raw.items() if linear}
        )
        self.widths: Mapping[NodeType, int] = dict.fromkeys(raw, width) if linear else raw

    def forward(self, batch: Batch) -> dict[NodeType, Tensor]:
        """Return (rows, width) for each type in `widths`; a type without nodes in the batch has 0 rows."""
        return {node_type: self._rows(node_type, batch) for node_type in self.widths}

    def _rows(self, node_type: NodeType, batch: Batch) -> Tensor:
        name = parameter_name(node_type)
        if node_type in self.inputs:
            rows = self._column(node_type, batch)
        else:
            rows = self.tables[name](batch.sample.nodes[node_type])
        if name not in self.linear:
            return rows
        linear = self.linear[name]
        out: Tensor = linear(rows.to(next(linear.parameters()).dtype))
        return out

    def _column(self, node_type: NodeType, batch: Batch) -> Tensor:
        if self.column not in batch.columns.get(node_type, {}):
            raise ValueError(
                f"column {self.column!r} of {node_type!r}: the model reads it, the batch does not have it; "
                f"give the loader columns=[{self.column!r}]"
            )
        return batch.columns[node_type][self.column].reshape(-1, self.inputs[node_type])


def _table(count: int, sizes: ModelSizes) -> nn.Module:
    width = sizes.embedding or 0
    if sizes.embedding_update != "dense":
        return NodeEmbedding(count, width, sizes.embedding_update)
    table = nn.Embedding(count, width)
    # A row as a whole has size 1, not each of its numbers: many rows are added up.
    nn.init.normal_(table.weight, std=width**-0.5)
    return table
