"""Sequence of layers with `forward(x, adjacency)` each; exact inference runs them one at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from khop.arguments import mapping_of
from khop.batch import Batch, Block
from khop.kernels.sparse_column import SparseRows
from khop.models.layered import check_num_blocks
from khop.schema import NodeType


class Sequential(nn.Module):
    """Layers that run one after another over the blocks of a batch; see `khop.models.Layered`.

    A layer is any module with `forward(x, adjacency)`: a convolution of torch_geometric with its activation,
    norm, dropout and residual. `x` has a row per source; its first `adjacency.num_dst` rows are the
    destinations, and the layer returns a row for each of them. For a graph with several node or edge types,
    `x` maps node types to rows, `adjacency` maps edge types to adjacencies, and the result maps node types to
    rows.

    The first layer's input is the node column `column`, in the dtype of the parameters. For a sparse column
    give its width: `x` is then `khop.SparseRows`, of which linear layers multiply the entries alone.
    """

    def __init__(
        self, layers: Sequence[nn.Module], column: str = "x", sparse_width: int | None = None
    ) -> None:
        super().__init__()
        if not layers:
            raise ValueError("Sequential: no layers, give a list of modules with forward(x, adjacency)")
        for index, layer in enumerate(layers):
            if not isinstance(layer, nn.Module):
                raise ValueError(
                    f"Sequential: layer {index} is a {type(layer).__name__}: give a torch.nn.Module with "
                    "forward(x, adjacency)"
                )
        self.layers = nn.ModuleList(layers)
        self.column = column
        self.sparse_width = sparse_width

    @property
    def num_layers(self) -> int:
        """Number of blocks that a batch needs."""
        return len(self.layers)

    @property
    def input_columns(self) -> tuple[str, ...]:
        """Input column, for every node type that has it."""
        return (self.column,)

    def encode(self, batch: Batch) -> dict[NodeType, Tensor]:
        """Return the rows of the column for each node type that has it."""
        dtype = next((p.dtype for p in self.parameters() if p.is_floating_point()), torch.get_default_dtype())
        found = {
            t: self._rows(of[self.column]).to(dtype) for t, of in batch.columns.items() if self.column in of
        }
        if not found:
            there = {t: sorted(of) for t, of in batch.columns.items()}
            raise ValueError(
                f"column {self.column!r}: not in this batch, which has {there}; ask the loader for it, "
                f"columns=[{self.column!r}], or name another, Sequential(layers, column=...)"
            )
        return found

    def layer(self, index: int, h: Mapping[NodeType, Tensor], block: Block) -> dict[NodeType, Tensor]:
        """Apply one layer; return the rows of the block's destinations."""
        adjacencies = block.adjacencies
        if len(block.src_counts) == len(adjacencies) == 1:
            ((node_type, x),) = h.items()
            (adjacency,) = adjacencies.values()
            return {node_type: self._checked(index, self.layers[index](x, adjacency), adjacency.num_dst)}
        into = {t: a for t, a in adjacencies.items() if t[0] in h and t[2] in block.dst_counts}
        out = self.layers[index](dict(h), into)
        mapping_of(f"output of layer {index}", out, "node types to rows, for a graph of several types")
        wanted = {t: count for t, count in block.dst_counts.items() if t in out}
        return {t: self._checked(index, out[t], count, t) for t, count in wanted.items()}

    def head(self, node_type: NodeType, h: Tensor) -> Tensor:
        """Return the last layer's rows unchanged."""
        return h

    def forward(self, batch: Batch) -> Tensor | dict[NodeType, Tensor]:
        """Return one row per seed, duplicates included; for several seed types, a mapping by type."""
        check_num_blocks(self, batch)
        h = self.encode(batch)
        for index, block in enumerate(batch.blocks):
            h = self.layer(index, h, block)
        out = {t: h[t].index_select(0, rows) for t, rows in batch.sample.seed_index.items() if t in h}
        return next(iter(out.values())) if len(batch.sample.seed_index) == len(out) == 1 else out

    def _rows(self, column: Tensor) -> Tensor:
        if self.sparse_width is not None:
            return SparseRows.of(column, self.sparse_width)
        if column.dtype == torch.int32 and column.shape[1:2] == (2,) and column.dim() == 3:
            raise ValueError(
                f"column {self.column!r} has rows of indices and values: give the width of the sparse column"
                ", Sequential(layers, sparse_width=graph.schema.column(node_type, column).width)"
            )
        return column

    def _checked(self, index: int, rows: Tensor, num_dst: int, node_type: NodeType | None = None) -> Tensor:
        if rows.shape[0] != num_dst:
            of = "" if node_type is None else f" of {node_type!r}"
            raise ValueError(
                f"layer {index} gives {rows.shape[0]} rows{of} for {num_dst} destinations: give the "
                "convolution (x, x[: adjacency.num_dst]) instead of x"
            )
        return rows
