"""Multilayer perceptron over node columns: SGC and SIGN over columns of `khop graph propagate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from khop.batch import Batch
from khop.components import Default
from khop.models.encoder import Encoding, HasTypes, ModelInputs, ModelSizes
from khop.models.layer import LayerOptions, Norm, Residual, StackOptions
from khop.models.sage import matrix_layer
from khop.models.stack import Stack
from khop.schema import NodeType, Type


@dataclass(frozen=True)
class MlpOptions(StackOptions):
    """Options of a multilayer perceptron, as a run sets them."""

    concat: Annotated[str, Default("only the input column")] = ""
    """Node columns that are appended to the input column, separated by commas, such as x_1,x_2,x_3"""

    @property
    def columns(self) -> tuple[str, ...]:
        """The appended columns."""
        return tuple(name.strip() for name in self.concat.split(",") if name.strip())


class ColumnMLP(Stack):
    """Multilayer perceptron over the columns of a node, which does not use edges.

    A layer computes `norm(W h + b)`, then ReLU and dropout; a linear head follows the last one. Over the last
    column of `khop graph propagate`, such as x_3, it is SGC (Wu et al. 2019) with hidden layers. Over the
    concatenation of x, x_1, x_2 and x_3 it is SIGN (Frasca et al. 2020). Blocks need no edges: the fanouts of
    a run are 0 by default.

    Args:
        sizes: Types, widths and counts of the graph; `inputs` are the widths of all columns together.
            `for_graph` derives them.
        hidden: Width of a layer's output (default 256).
        layers: Number of layers, which is the number of blocks of a batch (default 2).
        concat: Further columns, appended to the input column (default none).
        dropout: Dropout probability of hidden values in training (default 0).
        norm: "layer" for layer normalization in each layer, "none" (default) for no normalization.
        residual: "add" adds the input of a layer to its output if the widths are equal (default "none").
        encoder: "linear" applies a linear layer per node type before the first layer (default "none").
    Raises:
        ValueError: A setting is out of range, or a node type lacks the input column.
    Example:
        >>> graph = khop.open_graph("debian")
        >>> model = khop.models.ColumnMLP.for_graph(graph, hidden=64)
        >>> loader = khop.Loader(khop.NeighborSampler(graph, [0, 0]), graph.split("train"), 16, columns=["x"])
        >>> model(loader.batch(epoch=0, step=0)).shape
        torch.Size([16, 58])
    """

    Options = MlpOptions
    summary = "a multilayer perceptron over columns, without edges"
    follows_edges = False  # a run that names no fanouts draws none

    def __init__(
        self,
        sizes: ModelSizes,
        hidden: int = 256,
        layers: int = 2,
        concat: Sequence[str] = (),
        dropout: float = 0.0,
        norm: Norm = "none",
        residual: Residual = "none",
        encoder: Encoding = "none",
    ) -> None:
        options = LayerOptions(hidden, dropout, norm, residual)
        super().__init__(replace(sizes, edge_types=()), encoder, layers, options, matrix_layer)
        self.concat = tuple(concat)

    @classmethod
    def for_graph(
        cls,
        graph: HasTypes,
        hidden: int = 256,
        layers: int = 2,
        target: NodeType | Sequence[NodeType] | None = None,
        column: str = "x",
        concat: Sequence[str] = (),
        dropout: float = 0.0,
        norm: Norm = "none",
        residual: Residual = "none",
        label: str | None = None,
        outputs: int | None = None,
        encoder: Encoding = "none",
    ) -> ColumnMLP:
        """Make a model with the types and widths of a graph.

        The arguments that are not listed are those of `SAGE.for_graph`.

        Args:
            concat: Columns to append to `column` (default none).
        Returns:
            The model, with new weights from torch's generator.
        """
        sizes = with_columns(graph, ModelSizes.of(graph, target, column, label, outputs), concat)
        return cls(sizes, hidden, layers, concat, dropout, norm, residual, encoder)

    @classmethod
    def build(cls, options: MlpOptions, context: ModelInputs) -> ColumnMLP:
        """Make the model of a run, with new weights from torch's generator."""
        sizes = with_columns(context.graph, context.sizes, options.columns)
        shape = (context.hidden, context.layers, options.columns, options.dropout, options.norm)
        return cls(sizes, *shape, options.added, options.encoder)

    @property
    def input_columns(self) -> Mapping[Type, tuple[str, ...]]:
        """Columns of each node type with inputs."""
        return dict.fromkeys(tuple(self.encoder.inputs), (self.sizes.column, *self.concat))

    def encode(self, batch: Batch) -> dict[NodeType, Tensor]:
        """Return (rows, width) of each node type: its concatenated columns, in the parameters' dtype."""
        if self.concat:
            joined = {t: {self.sizes.column: self._joined(t, batch)} for t in self.encoder.inputs}
            batch = replace(batch, columns={**batch.columns, **joined})
        return super().encode(batch)

    def _joined(self, node_type: NodeType, batch: Batch) -> Tensor:
        names, given = (self.sizes.column, *self.concat), batch.columns.get(node_type, {})
        missing = [name for name in names if name not in given]
        if missing:
            raise ValueError(
                f"columns {missing} of {node_type!r}: the model reads them, the batch does not have them; "
                f"give the loader columns={list(names)}"
            )
        dtype = next(self.heads.parameters()).dtype
        columns = [given[name].unsqueeze(1) if given[name].dim() == 1 else given[name] for name in names]
        return torch.cat([column.flatten(1).to(dtype) for column in columns], dim=1)


def with_columns(graph: HasTypes, sizes: ModelSizes, concat: Sequence[str]) -> ModelSizes:
    """Add the widths of further columns to the inputs of targets; ValueError if one lacks a column."""
    inputs = {t: width for t, width in sizes.inputs.items() if t in sizes.target_types}
    for node_type in inputs if concat else ():
        specs = graph.schema.columns.get(node_type, {})
        names = (sizes.column, *concat)
        missing = [name for name in concat if name not in specs]
        if missing or len(set(names)) < len(names):
            raise ValueError(
                f"concat {list(concat)}: must be columns of {node_type!r} besides {sizes.column!r}, each "
                f"named once; it has {sorted(specs)}"
            )
        if any(specs[name].sparse_width is not None for name in names):
            raise ValueError(f"concat {list(concat)}: columns of {node_type!r} are sparse; name dense ones")
        inputs[node_type] = sum(specs[name].width for name in names)
    return replace(sizes, inputs=inputs)
