"""Batch with static shapes on a GPU: buffers allocated once, the launches that fill them, and its sample.

Launches do not depend on values that the host would have to read, so CUDA graphs can capture them. Counts
stay on the device. A batch that exceeds a capacity is reported there, and nothing is written out of bounds.

The sample consists of views of the buffers, cut to the counts or padded to the capacities. The next batch
in the same buffers overwrites it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from types import MappingProxyType

import torch
from torch import Tensor

from khop.batch import Adjacency, Block, Sample, Subgraph
from khop.draw import DrawKey
from khop.kernels.triton.node_table import look_up
from khop.kernels.triton.to_csr import CsrBuffers
from khop.sampling.on_device.batch_plan import BatchPlan
from khop.sampling.on_device.device_draw import (
    CsrOutput,
    DrawnRows,
    DrawnSlots,
    HopPlan,
    csr_buffers,
    most_drawn,
    plan_hop,
)
from khop.sampling.on_device.edge_arrays import EdgeWeights, ElapsedTimes, Ends, RowFanout
from khop.sampling.on_device.inputs import Excluded, Inputs
from khop.sampling.on_device.type_nodes import (
    Branches,
    Cell,
    Cells,
    Counts,
    SlotKeys,
    TypeNodes,
    counts_of,
)
from khop.sampling.seeds import Seeds
from khop.schema import EdgeType, NodeType

Outputs = Mapping[EdgeType, CsrOutput]


class DeviceBatch:
    """Buffers of one batch in flight: `write` its input, `launch`, then view the sample (see `views`)."""

    def __init__(self, plan: BatchPlan) -> None:
        self.plan = plan
        disjoint = plan.sampler.is_disjoint
        self.inputs = Inputs(plan.seeds, plan.excluded, plan.device, trees=disjoint, times=plan.is_timed)
        num_levels = len(plan.hops) + 1
        num_edges = sum(len(hop.fanouts) for hop in plan.hops)
        self.cells = Cells(1 + 2 * num_levels * len(plan.node_types) + num_edges, plan.device)
        self.stamp = 0  # of the batch in the buffers
        self._zero = self.cells.take()
        self._branches = None
        if plan.rule.has_paths:
            assert self.inputs.trees is not None
            self._branches = Branches(self.inputs.trees, most_drawn(plan))
        self.trees: dict[NodeType, Tensor] = {}  # int64 (capacity), the number of each node's seed
        self.nodes = {t: self._type_nodes(t) for t in plan.node_types}
        self.seed_index: dict[NodeType, Tensor] = {}  # int64 (capacity), 0 behind the last seed
        self.hops: list[HopPlan] = []
        self.outputs: list[Outputs] = []  # by hop
        self._launches: list[Callable[[], None]] = []
        self._plan_launches()

    def write(self, seeds: Seeds, key: DrawKey, excluded: Excluded = MappingProxyType({})) -> None:
        """Copy the input of the next batch to the device; edges of `excluded` carry no message."""
        self.stamp = self.plan.next_stamp()
        self.inputs.write(seeds, key, self.stamp, excluded)

    def launch(self) -> None:
        """Start all kernels of the batch in the current stream; nothing waits."""
        for start in self._launches:
            start()

    def _type_nodes(self, node_type: NodeType) -> TypeNodes:
        plan, capacity = self.plan, self.plan.capacities.nodes[-1][node_type]
        table, inputs = plan.tables[node_type], self.inputs
        trees = inputs.trees if self._branches is None else self._branches.of_tree
        numbers = table.numbers(inputs.stamp, self.cells.overflow, capacity, trees)
        return TypeNodes(numbers, capacity, self._zero, plan.device)

    def _plan_launches(self) -> None:
        self._launches += [nodes.numbers.start for nodes in self.nodes.values()]
        self._launches += [] if self._branches is None else [self._branches.start]
        seeds = {t: self.nodes[t].numbers.slots(ids) for t, ids in self.inputs.seeds.items()}
        for t, slots in seeds.items():
            trees = self.inputs.seed_trees.get(t)
            self._launches.append(partial(self.nodes[t].numbers.plant, slots, trees))
        self._add_level(0, seeds)
        for hop in self.plan.hops:
            planned = plan_hop(self.plan, hop, self.nodes, self.inputs, self._branches)
            self.hops.append(planned)
            self._launches += [draw.run for draw in planned.draws.values()]
            self._add_level(hop.number, planned.slots)
        if self.plan.is_layered:
            self.outputs = [self._blocks_output(hop) for hop in self.hops]
        else:
            self.outputs = self._joined_outputs()
        for t, slots in seeds.items():
            self.seed_index[t] = torch.zeros_like(self.inputs.seeds[t])
            numbering = self.nodes[t].numbers.numbering
            self._launches.append(partial(look_up, numbering, slots.keys, self.seed_index[t], 0))
        for t, nodes in self.nodes.items() if self.plan.sampler.is_disjoint else ():
            self.trees[t] = trees = nodes.tree_rows.trees
            if self._branches is not None:
                self.trees[t] = torch.zeros_like(trees)
                self._launches.append(partial(_select, self._branches.roots, trees, self.trees[t]))

    def _add_level(self, level: int, slots: Mapping[NodeType, SlotKeys]) -> None:
        capacities = self.plan.capacities
        is_expanded = not self.plan.is_layered and 0 < level < len(self.plan.hops)
        for t, nodes in self.nodes.items():
            fresh = capacities.rows[level][t] if is_expanded else None
            fill = nodes.add_level(slots.get(t), capacities.nodes[level][t], fresh, self.cells)
            self._launches += [] if fill is None else [fill]

    def _blocks_output(self, planned: HopPlan) -> Outputs:
        """Return the outputs of a hop of the layered expansion: separate arrays for each edge type."""
        outputs = {}
        for edge_type in planned.hop.fanouts:
            rows = planned.frontier[edge_type[2]].nodes.numel()
            drawn = planned.drawn(edge_type)
            buffers = self._buffers(rows, drawn.room)
            edges = self.cells.take() if edge_type in planned.draws else self._zero
            outputs[edge_type] = self._output(edge_type, drawn, buffers, (self._zero, self._zero, edges))
            if edge_type in planned.draws:
                self._launches.append(outputs[edge_type].run)
                nodes, fanout = planned.frontier[edge_type[2]].nodes, planned.hop.fanouts[edge_type]
                self._weigh(edge_type, buffers, nodes, (RowFanout(self._zero.value, fanout),))
                self._date(edge_type, buffers)
        return outputs

    def _joined_outputs(self) -> list[Outputs]:
        """Return the outputs of the subgraph expansion: the hops of an edge type share their arrays."""
        drawn = [{t: hop.drawn(t) for t in hop.hop.fanouts} for hop in self.hops]
        room: dict[EdgeType, int] = {}
        for of_hop in drawn:
            for edge_type, of_type in of_hop.items():
                room[edge_type] = room.get(edge_type, 0) + of_type.room
        top = self.plan.capacities.nodes[-1]
        buffers = {t: self._buffers(top[t[2]], edges) for t, edges in room.items()}
        before = dict.fromkeys(room, self._zero)
        outputs: list[Outputs] = []
        for level, of_hop in enumerate(drawn):
            outputs.append({})
            for edge_type, of_type in of_hop.items():
                first = self.nodes[edge_type[2]].counts[level - 1] if level else self._zero
                # Also for a fanout of 0: rows without edges end where the rows before them end.
                edges = self.cells.take() if of_type.num_rows else before[edge_type]
                cells = (first, before[edge_type], edges)
                output = self._output(edge_type, of_type, buffers[edge_type], cells)
                outputs[-1] = {**outputs[-1], edge_type: output}
                self._launches += [output.run] if of_type.num_rows else []
                before[edge_type] = edges
        for edge_type, joined in buffers.items():
            nodes = self.nodes[edge_type[2]]
            firsts = [self._zero, *nodes.counts]
            fanouts = tuple(
                RowFanout(first.value, hop.hop.fanouts[edge_type])
                for first, hop in zip(firsts, self.hops, strict=False)
            )
            self._weigh(edge_type, joined, nodes.nodes, fanouts)
            self._date(edge_type, joined)
        return outputs

    def _buffers(self, rows: int, edges: int) -> CsrBuffers:
        edge_ids = any(hop.edge_ids for hop in self.plan.hops)
        weights, times = self.plan.has_weights, self.plan.rule.has_times
        return csr_buffers(rows, edges, self.plan.device, edge_ids=edge_ids, weights=weights, times=times)

    def _output(
        self,
        edge_type: EdgeType,
        drawn: DrawnSlots | DrawnRows,
        buffers: CsrBuffers,
        cells: tuple[Cell, Cell, Cell],
    ) -> CsrOutput:
        source = self.nodes[edge_type[0]].numbers
        return CsrOutput(drawn, source, *cells, buffers)

    def _weigh(
        self, edge_type: EdgeType, buffers: CsrBuffers, nodes: Tensor, fanouts: tuple[RowFanout, ...]
    ) -> None:
        """Add the launch that weighs the edges of the rows of some nodes, if edges have weights."""
        if buffers.weights is None or edge_type not in self.plan.arrays:
            return
        degrees, ends, sources = self.plan.degrees, None, self.nodes[edge_type[0]].nodes
        if degrees is not None:
            ends = Ends(sources, degrees.get(edge_type[0]), degrees[edge_type[2]])
        weights = EdgeWeights(self.plan.arrays[edge_type], nodes, fanouts, buffers, ends)
        self._launches.append(weights.run)

    def _date(self, edge_type: EdgeType, buffers: CsrBuffers) -> None:
        """Add the launch that writes elapsed times, if edges have them."""
        arrays = self.plan.arrays.get(edge_type)
        if buffers.elapsed is None or arrays is None or arrays.limits is None:
            return
        times, until = arrays.limits.times.edges, self.nodes[edge_type[2]].tree_rows.until
        assert times is not None
        assert until is not None
        self._launches.append(ElapsedTimes(times, until, buffers).run)


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
        trees = {t: of_type[: levels[-1][t]] for t, of_type in batch.trees.items()}
    if not batch.plan.is_layered:
        subgraph = _subgraph(batch, counts, levels)
        return Sample(nodes, subgraph.blocks(), seed_index, subgraph, trees)
    blocks = []
    for level, outputs in enumerate(batch.outputs):
        adjacencies = {
            t: _adjacency(batch, output, levels[level][t[2]], counts[output.edges], levels[level + 1][t[0]])
            for t, output in outputs.items()
        }
        blocks.append(Block(adjacencies, levels[level + 1], levels[level]))
    return Sample(nodes, tuple(reversed(blocks)), seed_index, trees=trees)


def drawn_with_larger_buffers(plan: BatchPlan, seeds: Seeds, key: DrawKey, excluded: Excluded) -> Sample:
    """Draw a batch that exceeds the capacities of its plan, with room that is doubled until the batch fits.

    The batch is made in the current stream, which has the earlier batches of the plan, or comes after them.
    The host waits for its counts. Raises torch.OutOfMemoryError, with the remedy, if the card is too small.
    """
    capacities, tried = plan.capacities, None
    pairs = {t: ends.shape[1] for t, ends in excluded.items()}
    counts = {t: ids.numel() for t, ids in seeds.nodes.items()}
    while (capacities := capacities.doubled(plan.limits).holding(counts, pairs)) != tried:
        problem = ""
        try:
            sample = _drawn_if_it_fits(plan.resized(capacities), seeds, key, excluded)
        except torch.OutOfMemoryError as error:  # not kept: it holds what was allocated so far
            sample, problem = None, str(error).partition("\n")[0]
        if problem:
            raise torch.OutOfMemoryError(
                f"a batch of {seeds.count:,} seeds exceeds the measured buffers, and larger ones could not "
                f"be allocated: {problem}. Use smaller batches or fewer neighbors, or let the CPU sample: "
                'topology="host"'
            )
        if sample is not None:
            return sample
        tried = capacities
    raise RuntimeError(
        f"a batch of {seeds.count:,} seeds exceeds buffers for all nodes and edges of the graph, which is a "
        'bug of khop: please report it, and let the CPU sample: topology="host"'
    )


def _drawn_if_it_fits(plan: BatchPlan, seeds: Seeds, key: DrawKey, excluded: Excluded) -> Sample | None:
    """Return a copy of a batch in new buffers; None if it exceeds them."""
    batch = DeviceBatch(plan)
    batch.write(seeds, key, excluded)
    batch.launch()
    counts = counts_of(batch.cells.values)
    if counts.overflowed == batch.stamp:
        return None
    return exact_sample(batch, counts, seeds).map(torch.clone)


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
        trees = dict(batch.trees)
    sample = Sample(nodes, tuple(reversed(blocks)), dict(batch.seed_index), trees=trees)
    num_nodes = {t: of_type.counts[-1].value for t, of_type in batch.nodes.items()}
    padded = PaddedSample(sample, num_nodes, batch.cells.overflow, batch.inputs.stamp, tuple(updates))
    padded.update()
    return padded


def _select(values: Tensor, places: Tensor, out: Tensor) -> None:
    torch.index_select(values, 0, places, out=out)


def _levels(batch: DeviceBatch) -> range:
    return range(len(batch.plan.hops) + 1)


def _of_seeds(batch: DeviceBatch, node_type: NodeType) -> Tensor:
    none = torch.empty(0, dtype=torch.int64, device=batch.plan.device)
    return batch.seed_index.get(node_type, none)


def _adjacency(batch: DeviceBatch, output: CsrOutput, rows: int, edges: int, num_src: int) -> Adjacency:
    buffers = output.buffers
    edge_ids = buffers.edge_ids if batch.plan.has_edge_ids else None
    ids, weight, elapsed = (
        None if each is None else each[:edges] for each in (edge_ids, buffers.weights, buffers.elapsed)
    )
    indptr, indices = buffers.indptr[: rows + 1], buffers.indices[:edges]
    return Adjacency(indptr, indices, num_src, ids, weight=weight, elapsed=elapsed)


def _padded(
    batch: DeviceBatch, output: CsrOutput, rows: int, num_src: int, updates: list[Callable[[], object]]
) -> Adjacency:
    buffers = output.buffers
    indptr = buffers.indptr[: rows + 1]
    if not batch.plan.is_layered:
        # The rows behind this hop's have the edges of later hops: here they have none.
        joined, indptr = indptr, torch.zeros_like(indptr)
        updates.append(partial(torch.minimum, joined, output.edges.value, out=indptr))
    edges = buffers.indices, num_src, buffers.edge_ids if batch.plan.has_edge_ids else None
    return Adjacency(indptr, *edges, weight=buffers.weights, is_padded=True, elapsed=buffers.elapsed)


def _subgraph(batch: DeviceBatch, counts: Counts, levels: list[dict[NodeType, int]]) -> Subgraph:
    edge_types: dict[EdgeType, None] = dict.fromkeys(t for outputs in batch.outputs for t in outputs)
    adjacencies, edges_per_hop = {}, {}
    for edge_type in edge_types:
        so_far = [counts[outputs[edge_type].edges] for outputs in batch.outputs]
        source, _, destination = edge_type
        output = batch.outputs[-1][edge_type]
        rows, num_src = levels[-1][destination], levels[-1][source]
        adjacencies[edge_type] = _adjacency(batch, output, rows, so_far[-1], num_src)
        edges_per_hop[edge_type] = tuple(_differences([0, *so_far]))
    nodes_per_hop = {t: tuple(_differences([0, *(level[t] for level in levels)])) for t in levels[0]}
    return Subgraph(adjacencies, nodes_per_hop, edges_per_hop)


def _differences(counts: list[int]) -> list[int]:
    return [later - earlier for earlier, later in pairwise(counts)]
