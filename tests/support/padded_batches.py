"""Batches with static shapes, made of ordinary ones: tail rows without edges, seeds that must weigh 0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from khop.batch import Adjacency, Batch, Block, LinkRows

SPARE = 5  # rows, edges and seeds behind the last one
UNUSED = 1 << 30  # index behind the last edge: nothing may read it


def padded(batch: Batch, spare_edges: int = 0) -> Batch:
    """The batch with SPARE more rows of each type at every level, and SPARE more seeds and links."""
    sample = batch.sample
    blocks = tuple(_block(block, spare_edges) for block in sample.blocks)
    return replace(
        batch,
        sample=replace(
            sample,
            nodes=_longer(sample.nodes),
            blocks=blocks,
            seed_index=_longer(sample.seed_index),
            links={t: _links(rows) for t, rows in sample.links.items()},
            subgraph=None,
        ),
        seed_nodes=_longer(batch.seed_nodes),
        columns={t: _longer(of_type) for t, of_type in batch.columns.items()},
        seed_columns={t: _longer(of_type) for t, of_type in batch.seed_columns.items()},
    )


def in_use(batch: Batch) -> Tensor:
    """True for each loss of the padded batch that is of a seed, or of a pair of links, of the batch."""
    counts = [rows.source.numel() for rows in batch.links.values()] or [batch.seed_index.numel()]
    return torch.cat([torch.arange(count + SPARE) < count for count in counts])


def _block(block: Block, spare_edges: int) -> Block:
    adjacencies = {}
    for t, edges in block.adjacencies.items():
        indptr = torch.cat([edges.indptr, edges.indptr[-1:].expand(SPARE)])
        indices = F.pad(edges.indices, (0, spare_edges), value=UNUSED)
        weight = None if edges.weight is None else F.pad(edges.weight, (0, spare_edges), value=torch.nan)
        adjacencies[t] = Adjacency(indptr, indices, edges.num_src + SPARE, weight=weight, is_padded=True)
    src_counts, dst_counts = (
        {t: count + SPARE for t, count in counts.items()} for counts in (block.src_counts, block.dst_counts)
    )
    return Block(adjacencies, src_counts, dst_counts)


def _links(rows: LinkRows) -> LinkRows:
    return rows.map(_longer_rows)


def _longer(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: _longer_rows(tensor) for name, tensor in tensors.items()}


def _longer_rows(tensor: Tensor) -> Tensor:
    return torch.cat([tensor, tensor.new_zeros(SPARE, *tensor.shape[1:])])
