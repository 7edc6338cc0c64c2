"""Conversion of khop's samples to torch_geometric's sampler outputs: one row per seed, plain tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from khop.batch import Adjacency, Sample, Subgraph
from khop.kernels.gather import gather
from khop.kernels.memory import pooled
from khop.pyg.typed_data import EDGE, NODE
from khop.schema import Schema

Output = Any  # SamplerOutput or HeteroSamplerOutput


def sampler_output(sample: Sample, schema: Schema) -> HeteroSamplerOutput:
    """Return the subgraph of a sample. `row` and `col` are adjacent in memory: stacking needs no copy."""
    sample = with_row_per_seed(sample)
    subgraph = sample.subgraph
    assert subgraph is not None
    edges, edge_ids = {}, {}
    for edge_type in schema.edge_types:
        adjacency = subgraph.adjacencies.get(edge_type)
        edges[edge_type] = edge_pairs(adjacency) if adjacency else torch.empty(2, 0, dtype=torch.int64)
        edge_ids[edge_type] = adjacency.edge_ids if adjacency else torch.empty(0, dtype=torch.int64)
    per_hop = subgraph.edges_per_hop  # None for an induced subgraph, as in torch_geometric
    return HeteroSamplerOutput(
        node=dict(sample.nodes),
        row={t: pairs[0] for t, pairs in edges.items()},
        col={t: pairs[1] for t, pairs in edges.items()},
        edge=edge_ids,
        batch=None if sample.trees is None else dict(sample.trees),
        num_sampled_nodes=None if per_hop is None else {t: [*n] for t, n in subgraph.nodes_per_hop.items()},
        num_sampled_edges=None if per_hop is None else {t: [*per_hop.get(t, ())] for t in edges},
    )


def edge_pairs(adjacency: Adjacency) -> Tensor:
    """Return int64 (2, edges), equal to `Adjacency.edge_index`, in a pooled block."""
    pairs = pooled((2, adjacency.indices.numel()), torch.int64)
    pairs[0].copy_(adjacency.indices)
    rows = torch.arange(adjacency.num_dst)
    pairs[1].copy_(
        torch.repeat_interleave(rows, adjacency.indptr.diff(), output_size=adjacency.indices.numel())
    )
    return pairs


def original_ids(edge_ids: Tensor | None, permutation: Tensor | None) -> Tensor:
    """Convert edge ids in the order of a graph store to the data's edge ids, int64 (edges)."""
    assert edge_ids is not None
    return edge_ids.long() if permutation is None else gather(permutation, edge_ids.long())


def side_by_side(row: Tensor, col: Tensor) -> Tensor:
    """Stack `row` and `col`, without a copy if they are the two halves of one tensor already."""
    count = row.numel()
    adjacent = (
        row.untyped_storage().data_ptr() == col.untyped_storage().data_ptr()
        and col.storage_offset() == row.storage_offset() + count
        and row.is_contiguous()
        and col.is_contiguous()
    )
    return row.as_strided((2, count), (count, 1)) if adjacent else torch.stack([row, col])


def with_row_per_seed(sample: Sample) -> Sample:
    """Give every seed a row, duplicates included. Without duplicates the sample is returned unchanged.

    A duplicate's row has the same in-edges as the first row of its node. Edges from this node to others start
    at the first row. torch_geometric's samplers do the same, except that they draw separately for each
    duplicate.
    """
    subgraph = sample.subgraph
    assert subgraph is not None
    seed_counts = {t: counts[0] for t, counts in subgraph.nodes_per_hop.items()}
    if all(index.numel() == seed_counts[t] for t, index in sample.seed_index.items()):
        return sample
    rows = {
        t: _Repeated.of(sample.seed_index.get(t), seed_counts[t], nodes.numel())
        for t, nodes in sample.nodes.items()
    }
    nodes_per_hop = {t: (rows[t].num_seeds, *counts[1:]) for t, counts in subgraph.nodes_per_hop.items()}
    adjacencies = {t: _repeat(a, rows[t[0]], rows[t[2]]) for t, a in subgraph.adjacencies.items()}
    edges_per_hop = (
        None
        if subgraph.edges_per_hop is None
        else {
            t: (int(adjacencies[t].indptr[rows[t[2]].num_seeds]), *counts[1:]) if counts else counts
            for t, counts in subgraph.edges_per_hop.items()
        }
    )
    repeated = Subgraph(adjacencies, nodes_per_hop, edges_per_hop)
    index = {t: torch.arange(rows[t].num_seeds) for t in sample.seed_index}
    nodes = {t: of_type[rows[t].old] for t, of_type in sample.nodes.items()}
    return Sample(nodes, repeated.blocks(), index, repeated)


@dataclass(frozen=True)
class _Repeated:
    """The change of a node type's rows."""

    num_seeds: int
    old: Tensor  # int64 (new rows): the old row of each
    new: Tensor  # int32 (old rows): the new row of each, the first one if there are several

    @classmethod
    def of(cls, seed_index: Tensor | None, distinct: int, count: int) -> _Repeated:
        index = torch.arange(distinct) if seed_index is None else seed_index
        num_seeds = index.numel()
        old = torch.cat([index, torch.arange(distinct, count)])
        first = torch.full((count,), old.numel())
        first.scatter_reduce_(0, old, torch.arange(old.numel()), "amin")
        return cls(num_seeds, old, first.int())


def _repeat(adjacency: Adjacency, sources: _Repeated, destinations: _Repeated) -> Adjacency:
    degrees = adjacency.indptr.diff()[destinations.old]
    indptr = torch.cat([degrees.new_zeros(1), degrees.cumsum(0)])
    shift = adjacency.indptr[:-1][destinations.old] - indptr[:-1]
    positions = torch.arange(int(indptr[-1])) + torch.repeat_interleave(shift, degrees)
    indices = sources.new[adjacency.indices[positions].long()]
    edge_ids = None if adjacency.edge_ids is None else adjacency.edge_ids[positions]
    weight = None if adjacency.weight is None else adjacency.weight[positions]
    return Adjacency(indptr, indices, sources.old.numel(), edge_ids, weight=weight)


def single(output: HeteroSamplerOutput) -> SamplerOutput:
    """Return the output of a graph without types."""
    return SamplerOutput(
        node=output.node[NODE],
        row=output.row[EDGE],
        col=output.col[EDGE],
        edge=output.edge[EDGE],
        batch=None if output.batch is None else output.batch[NODE],
        num_sampled_nodes=None if output.num_sampled_nodes is None else output.num_sampled_nodes[NODE],
        num_sampled_edges=None if output.num_sampled_edges is None else output.num_sampled_edges[EDGE],
    )
