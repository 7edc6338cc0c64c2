"""Draws of one hop and edge type on a GPU with static shapes, and their edges as CSR arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from khop.graph.rule import Hop
from khop.kernels.triton.all_neighbors import AllNeighbors, EdgeTrees, Omitted, all_neighbors
from khop.kernels.triton.exclude_edges import ExcludedPairs, exclude_edges
from khop.kernels.triton.expansion_csr import Expanded, expansion_csr
from khop.kernels.triton.node_table import Numbering
from khop.kernels.triton.rows import DeviceRows, Slots
from khop.kernels.triton.sample_smallest import EdgeOrder, SourceOrder, sample_smallest
from khop.kernels.triton.sample_uniform import sample_uniform
from khop.kernels.triton.sample_weighted import sample_weighted
from khop.kernels.triton.time_ranges import time_ranges
from khop.kernels.triton.to_csr import CsrBuffers, OutputPlace, num_row_blocks, row_sums, to_csr
from khop.sampling.on_device.batch_plan import BatchPlan
from khop.sampling.on_device.edge_arrays import EdgeArrays
from khop.sampling.on_device.inputs import EMPTY, Inputs
from khop.sampling.on_device.type_nodes import (
    Branches,
    Cell,
    Fork,
    FrontierRows,
    Numbers,
    SlotKeys,
    TypeNodes,
)
from khop.schema import EdgeType, NodeType


@dataclass(frozen=True)
class HopSection:
    """Slots of one edge type within the slots of its source type."""

    source: Numbers
    slots: SlotKeys
    first: int
    count: int

    @property
    def ids(self) -> Tensor:
        """int32 or int64 (count), drawn nodes."""
        return self.slots.ids[self.first : self.first + self.count]

    @property
    def keys(self) -> Tensor:
        """The index of the source type's table for each drawn node."""
        return self.slots.keys[self.first : self.first + self.count]


@dataclass(frozen=True)
class DrawnSlots:
    """The drawn edges of one hop and type in slots, as many for each row."""

    slots: Slots  # with keys of the source type's table as ids
    sums: Tensor  # int32 (blocks of rows)

    @property
    def num_rows(self) -> int:
        """Number of rows that fit."""
        return self.slots.counts.numel()

    @property
    def room(self) -> int:
        """Number of edges that fit."""
        return self.slots.ids.numel()

    def write(self, source: Numbering, place: OutputPlace, out: CsrBuffers) -> None:
        """Write the edges as CSR arrays; all their nodes must have local ids."""
        row_sums(self.slots.counts, self.sums)
        to_csr(self.slots, self.sums, source.table, source.base, place, out)


@dataclass(frozen=True)
class DrawnRows:
    """All edges of the rows of one hop and type."""

    expanded: Expanded

    @property
    def num_rows(self) -> int:
        """Number of rows that fit."""
        return self.expanded.offsets.numel() - 1

    @property
    def room(self) -> int:
        """Number of edges that fit."""
        return self.expanded.keys.numel()

    def write(self, source: Numbering, place: OutputPlace, out: CsrBuffers) -> None:
        """Write the edges as CSR arrays; all their nodes must have local ids."""
        expansion_csr(self.expanded, source.table, source.base, place, out)


@dataclass(frozen=True)
class SlotDraw:
    """A draw of up to `fanout` in-edges of each row, of one edge type."""

    arrays: EdgeArrays
    fanout: int
    frontier: FrontierRows
    rows: DeviceRows  # the frontier as kernels read it; `ranges` are written by time limits
    section: HopSection
    slots: Slots
    drawn: DrawnSlots
    excluded: ExcludedPairs | None = None  # edges that are left out after the draw
    fork: Fork | None = None  # each drawn edge starts a tree

    def run(self) -> None:
        """Draw into the section, and mark the drawn nodes in the table of the source type."""
        section, csc, sums = self.section, self.arrays.csc, self.arrays.sums
        replacement, after = self.arrays.replacement, section.source.marks(section.first)
        marks = after if self.excluded is None else None
        _limit(self.arrays, self.rows, self.frontier, self.fanout)
        if self.arrays.order is not None:
            sample_smallest(csc, self.rows, self.fanout, self._order(), self.slots, marks)
        elif sums is None:
            sample_uniform(csc, self.rows, self.fanout, replacement, self.slots, marks)
        else:
            sample_weighted(csc, sums, self.rows, self.fanout, replacement, self.slots, marks)
        if self.excluded is not None:
            exclude_edges(self.frontier.nodes, self.excluded, self.slots, after)
        trees = None if self.frontier.trees is None else self.frontier.trees.trees
        if self.fork is not None:
            assert trees is not None
            assert self.slots.edges is not None  # plans of such rules keep the edges
            trees = self.fork.trees(trees[:, None].expand(-1, self.fanout).reshape(-1), self.slots.edges)
        section.source.reach(section.slots, section.first, section.count, trees)

    def _order(self) -> SourceOrder | EdgeOrder:
        """Return the order of the hop: numbers of sources have its counter word."""
        order = self.arrays.order
        assert order is not None
        return replace(order, stream=self.rows.stream) if isinstance(order, SourceOrder) else order


@dataclass(frozen=True)
class RowDraw:
    """All in-edges of each row, of one edge type, as a fanout of -1 takes them."""

    arrays: EdgeArrays
    frontier: FrontierRows
    rows: DeviceRows  # as in SlotDraw
    section: HopSection
    expansion: AllNeighbors
    drawn: DrawnRows
    fork: Fork | None = None  # as in SlotDraw

    def run(self) -> None:
        """Write the edges into the section, and mark their nodes."""
        section, trees = self.section, self.expansion.trees
        _limit(self.arrays, self.rows, self.frontier, -1)
        all_neighbors(self.arrays.csc, self.rows, self.expansion, section.source.marks(section.first))
        of_edges = None if trees is None else trees.of_edges
        if self.fork is not None:
            assert of_edges is not None
            assert self.expansion.edges is not None
            of_edges = self.fork.trees(of_edges, self.expansion.edges)
        section.source.reach(section.slots, section.first, section.count, of_edges)


def _limit(arrays: EdgeArrays, rows: DeviceRows, frontier: FrontierRows, fanout: int) -> None:
    """Find the edges of each row that its time limit allows."""
    limits, trees, ranges = arrays.limits, frontier.trees, rows.ranges
    if limits is None:
        return
    assert ranges is not None
    assert trees is not None
    assert trees.until is not None
    # The latest edges are all edges of a range with as many: a draw returns such a row whole.
    most = fanout if limits.is_latest else -1
    time_ranges(arrays.csc, limits.times, rows, trees.until, ranges, limits.window, most)


@dataclass(frozen=True)
class CsrOutput:
    """The edges of one hop and type as CSR arrays."""

    drawn: DrawnSlots | DrawnRows
    source: Numbers
    first: Cell  # the row of the output that is the hop's first row
    edges_before: Cell  # edges in the output without this hop's
    edges: Cell  # with this hop's
    buffers: CsrBuffers

    def run(self) -> None:
        """Write the edges; all nodes of the hop must have local ids."""
        place = OutputPlace(self.first.value, self.edges_before.value, self.edges.value)
        self.drawn.write(self.source.numbering, place, self.buffers)


def csr_buffers(
    rows: int, edges: int, device: torch.device, *, edge_ids: bool, weights: bool = False, times: bool = False
) -> CsrBuffers:
    """Return CSR arrays without edges."""
    return CsrBuffers(
        torch.zeros(rows + 1, dtype=torch.int64, device=device),
        torch.zeros(edges, dtype=torch.int32, device=device),
        torch.zeros(edges, dtype=torch.int64, device=device) if edge_ids else None,
        torch.zeros(edges, dtype=torch.float32, device=device) if weights else None,
        torch.zeros(edges, dtype=torch.int64, device=device) if times else None,
    )


def sums_of(counts: Tensor) -> Tensor:
    """Return room for the sums of blocks of rows."""
    return torch.empty(num_row_blocks(counts.numel()), dtype=torch.int32, device=counts.device)


_ALIGNED = 16  # slots: sections begin at multiples of it, so that kernels are compiled for one alignment


@dataclass(frozen=True)
class HopPlan:
    """The draws of one hop."""

    hop: Hop
    frontier: Mapping[NodeType, FrontierRows]
    slots: Mapping[NodeType, SlotKeys]  # by source type
    draws: Mapping[
        EdgeType, SlotDraw | RowDraw
    ]  # edge types with a fanout of 0, no rows or no edges have none

    def drawn(self, edge_type: EdgeType) -> DrawnSlots | DrawnRows:
        """Return the edges of a draw, or rows without slots if nothing is drawn."""
        draw = self.draws.get(edge_type)
        if draw is not None:
            return draw.drawn
        rows = self.frontier[edge_type[2]].nodes
        edges = rows[:0] if self.hop.edge_ids else None
        counts = torch.zeros_like(rows, dtype=torch.int32)
        return DrawnSlots(Slots(rows[:0], counts, edges), sums_of(counts))


def most_drawn(plan: BatchPlan) -> int:
    """Return the slots of all draws of all hops together."""
    return sum(_room(plan, hop, t) for hop in plan.hops for t, fanout in hop.fanouts.items() if fanout)


def plan_hop(
    plan: BatchPlan,
    hop: Hop,
    nodes: Mapping[NodeType, TypeNodes],
    inputs: Inputs,
    branches: Branches | None = None,
) -> HopPlan:
    """Allocate the slots of a hop and return its draws."""
    level = hop.number - 1
    rows = plan.capacities.rows[level]
    frontier = {
        t: of_type.frontier(level, rows[t]) if plan.is_layered or level == 0 else of_type.fresh(level)
        for t, of_type in nodes.items()
    }
    counts = {t: _room(plan, hop, t) for t in hop.fanouts}
    firsts: dict[EdgeType, int] = {}
    sizes = dict.fromkeys(nodes, 0)
    wide = set()
    for edge_type, fanout in hop.fanouts.items():
        if rows[edge_type[2]] * fanout == 0 or plan.arrays[edge_type].csc.num_edges == 0:
            continue
        count, source = counts[edge_type], edge_type[0]
        firsts[edge_type] = sizes[source]
        sizes[source] += -(-count // _ALIGNED) * _ALIGNED
        if plan.arrays[edge_type].csc.indices.dtype == torch.int64:
            wide.add(source)
    slots = {
        t: nodes[t].numbers.slots(
            torch.full((size,), EMPTY, dtype=torch.int64 if t in wide else torch.int32, device=plan.device)
        )
        for t, size in sizes.items()
        if size
    }
    draws: dict[EdgeType, SlotDraw | RowDraw] = {}
    for edge_type, first in firsts.items():
        source = edge_type[0]
        section = HopSection(nodes[source].numbers, slots[source], first, counts[edge_type])
        limits, fork = plan.arrays[edge_type].limits, None
        if branches is not None:
            fork = branches.take(section.count, None if limits is None else limits.times.edges)
        draws[edge_type] = _draw(plan, hop, edge_type, frontier[edge_type[2]], section, inputs, fork)
    return HopPlan(hop, frontier, slots, draws)


def _room(plan: BatchPlan, hop: Hop, edge_type: EdgeType) -> int:
    """Return the slots of a draw: some for each row, or the capacity of all edges of the rows together."""
    level, fanout = hop.number - 1, hop.fanouts[edge_type]
    if fanout >= 0:
        return plan.capacities.rows[level][edge_type[2]] * fanout
    return max(1, plan.capacities.edges[level].get(edge_type, 0))  # 0: a first edge is an overflow


def _draw(
    plan: BatchPlan,
    hop: Hop,
    edge_type: EdgeType,
    frontier: FrontierRows,
    section: HopSection,
    inputs: Inputs,
    fork: Fork | None,
) -> SlotDraw | RowDraw:
    arrays = plan.arrays[edge_type]
    capacity, ranges = frontier.nodes.numel(), None
    if arrays.limits is not None:
        ranges = torch.zeros(2 * capacity, dtype=torch.int64, device=plan.device)
    rows = DeviceRows(
        frontier.nodes,
        frontier.count.value,
        inputs.key,
        plan.stream(hop, edge_type),
        arrays.original_ids,
        None if frontier.trees is None else frontier.trees.positions,
        ranges,
    )
    edges = None
    if hop.edge_ids:
        edges = torch.full((section.count,), EMPTY, dtype=torch.int64, device=plan.device)
    excluded = inputs.excluded.get(edge_type)
    if hop.fanouts[edge_type] < 0:
        offsets = torch.zeros(capacity + 1, dtype=torch.int64, device=plan.device)
        trees = None
        if frontier.trees is not None:
            trees = EdgeTrees(frontier.trees.trees, offsets.new_zeros(section.count))
        overflow, omitted = section.source.numbering.overflows, Omitted(arrays.sums, excluded)
        expansion = AllNeighbors(offsets, section.ids, edges, trees, overflow, omitted)
        drawn = DrawnRows(Expanded.of(section.keys, offsets, edges))
        return RowDraw(arrays, frontier, rows, section, expansion, drawn, fork)
    counts = torch.zeros(capacity, dtype=torch.int32, device=plan.device)
    of_keys = DrawnSlots(Slots(section.keys, counts, edges), sums_of(counts))
    slots = Slots(section.ids, counts, edges)
    return SlotDraw(arrays, hop.fanouts[edge_type], frontier, rows, section, slots, of_keys, excluded, fork)
