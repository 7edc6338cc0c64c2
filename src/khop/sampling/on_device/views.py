"""Samples over the buffers of a batch with static shapes: cut to their counts, or padded to the capacities.

All tensors are views of the buffers. The next batch in the same buffers overwrites them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from khop.batch import Adjacency, Block, Sample, Subgraph
from khop.sampling.on_device.cells import Counts
from khop.sampling.on_device.device_batch import DeviceBatch
from khop.sampling.on_device.device_draw import CsrOutput
from khop.sampling.sampler import Seeds
from khop.schema import EdgeType, NodeType


@dataclass(frozen=True)
class PaddedSample:
    """A sample with static shapes. Rows behind the last node have no edges; unused seeds have row 0."""

    sample: Sample  # `subgraph` is None: its blocks have rows in common, padded ones do not
    num_nodes: Mapping[NodeType, Tensor]  # int32 (1), rows in use
    overflow: Tensor  # int64 (1), equal to `stamp` if the batch exceeded a capacity and must not be used
    stamp: Tensor  # int64 (1)
    updates: tuple[Callable[[], object], ...] = ()  # launches that follow those of each batch

    def update(self) -> None:
        """Bring the row pointers up to date after the launches of a batch; nothing waits."""
        for start in self.updates:
            start()


def exact_sample(batch: DeviceBatch, counts: Counts, seeds: Seeds) -> Sample:
    """Return the sample of a batch that fits: what `NeighborSampler.sample` returns for the seeds."""
    levels = [
        {t: counts[nodes.counts[level]] for t, nodes in batch.nodes.items()} for level in _levels(batch)
    ]
    nodes = {t: of_type.nodes[: levels[-1][t]] for t, of_type in batch.nodes.items()}
    seed_index = {t: _of_seeds(batch, t)[: ids.numel()] for t, ids in seeds.nodes.items()}
    trees = None
    if batch.plan.sampler.is_disjoint:
        trees = {t: of_type.tree_numbers[: levels[-1][t]] for t, of_type in batch.nodes.items()}
    if not batch.plan.is_layered:
        subgraph = _subgraph(batch, counts, levels)
        return Sample(nodes, subgraph.blocks(), seed_index, subgraph, trees)
    blocks = []
    for level, outputs in enumerate(batch.outputs):
        adjacencies = {
            t: _adjacency(output, levels[level][t[2]], counts[output.edges], levels[level + 1][t[0]])
            for t, output in outputs.items()
        }
        blocks.append(Block(adjacencies, levels[level + 1], levels[level]))
    return Sample(nodes, tuple(reversed(blocks)), seed_index, trees=trees)


def padded_sample(batch: DeviceBatch) -> PaddedSample:
    """Return the sample with the capacities as its shapes; nothing is read from the device.

    It is of the batch in the buffers. After the launches of a later batch, `update` it.
    """
    capacities = batch.plan.capacities.nodes
    updates: list[Callable[[], object]] = []
    blocks = []
    for level, outputs in enumerate(batch.outputs):
        adjacencies = {
            t: _padded(batch, output, capacities[level][t[2]], capacities[level + 1][t[0]], updates)
            for t, output in outputs.items()
        }
        blocks.append(Block(adjacencies, dict(capacities[level + 1]), dict(capacities[level])))
    nodes = {t: of_type.nodes for t, of_type in batch.nodes.items()}
    trees = None
    if batch.plan.sampler.is_disjoint:
        trees = {t: of_type.tree_numbers for t, of_type in batch.nodes.items()}
    sample = Sample(nodes, tuple(reversed(blocks)), dict(batch.seed_index), trees=trees)
    num_nodes = {t: of_type.counts[-1].value for t, of_type in batch.nodes.items()}
    padded = PaddedSample(sample, num_nodes, batch.cells.overflow, batch.inputs.stamp, tuple(updates))
    padded.update()
    return padded


def _levels(batch: DeviceBatch) -> range:
    return range(len(batch.plan.hops) + 1)


def _of_seeds(batch: DeviceBatch, node_type: NodeType) -> Tensor:
    none = torch.empty(0, dtype=torch.int64, device=batch.plan.device)
    return batch.seed_index.get(node_type, none)


def _adjacency(output: CsrOutput, rows: int, edges: int, num_src: int) -> Adjacency:
    buffers = output.buffers
    edge_ids = None if buffers.edge_ids is None else buffers.edge_ids[:edges]
    weight = None if buffers.weights is None else buffers.weights[:edges]
    return Adjacency(buffers.indptr[: rows + 1], buffers.indices[:edges], num_src, edge_ids, weight=weight)


def _padded(
    batch: DeviceBatch, output: CsrOutput, rows: int, num_src: int, updates: list[Callable[[], object]]
) -> Adjacency:
    buffers = output.buffers
    indptr = buffers.indptr[: rows + 1]
    if not batch.plan.is_layered:
        # The rows behind this hop's have the edges of later hops: here they have none.
        joined, indptr = indptr, torch.zeros_like(indptr)
        updates.append(partial(torch.minimum, joined, output.edges.value, out=indptr))
    edges = buffers.indices, num_src, buffers.edge_ids
    return Adjacency(indptr, *edges, weight=buffers.weights, is_padded=True)


def _subgraph(batch: DeviceBatch, counts: Counts, levels: list[dict[NodeType, int]]) -> Subgraph:
    edge_types: dict[EdgeType, None] = dict.fromkeys(t for outputs in batch.outputs for t in outputs)
    adjacencies, edges_per_hop = {}, {}
    for edge_type in edge_types:
        so_far = [counts[outputs[edge_type].edges] for outputs in batch.outputs]
        source, _, destination = edge_type
        output = batch.outputs[-1][edge_type]
        adjacencies[edge_type] = _adjacency(output, levels[-1][destination], so_far[-1], levels[-1][source])
        edges_per_hop[edge_type] = tuple(_differences([0, *so_far]))
    nodes_per_hop = {t: tuple(_differences([0, *(level[t] for level in levels)])) for t in levels[0]}
    return Subgraph(adjacencies, nodes_per_hop, edges_per_hop)


def _differences(counts: list[int]) -> list[int]:
    return [later - earlier for earlier, later in pairwise(counts)]
