"""Means of the in-neighbors' rows of a table: the input of a model's first layer."""

from __future__ import annotations

import torch
from torch import Tensor

from khop.kernels.choice import Engine, engine
from khop.kernels.csc import Csc
from khop.kernels.gather import Column, gather_columns
from khop.kernels.segment import segment_mean


def gather_mean(column: Column, nodes: Tensor, indptr: Tensor, indices: Tensor) -> Tensor:
    """Average the rows table[nodes[indices]] over each row's edges; 0 where there is no edge.

    `nodes` are int64 ids of table rows (sources of a block), `indptr` and `indices` its edges. The bits are
    those of `gather_columns` and then `segment_mean`. On a device, the gathered rows are never written to
    memory: each edge reads the table, so a source of several edges is read several times. No gradient flows.
    """
    if engine(nodes.device) is not Engine.TRITON or len(column.pieces) > 1:
        (rows,) = gather_columns([column], nodes)
        return segment_mean(rows.flatten(1), indptr, indices)
    from khop.kernels.triton.gather_mean import gather_mean as by_triton

    table = column.pieces[0].detach()
    slots, copies = (None, None) if column.copies is None else (column.copies.slots, column.copies.rows)
    edges = Csc(indptr.contiguous(), indices.int().contiguous())
    dtype = torch.float32 if column.as_float32 else table.dtype
    made = by_triton(table, nodes, edges, dtype=dtype, scales=column.scales, slots=slots, cache=copies)
    return made.flatten(1)
