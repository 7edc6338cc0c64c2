"""One hop of a batch with static shapes: where its draws write, and what it expands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from khop.kernels.triton.all_neighbors import EdgeTrees, Expansion, Omitted
from khop.kernels.triton.expansion_csr import Expanded
from khop.kernels.triton.rows import Rows, Slots
from khop.rules.rule import Hop
from khop.sampling.on_device.batch_plan import BatchPlan
from khop.sampling.on_device.device_draw import (
    DeviceDraw,
    Drawn,
    DrawnRows,
    DrawnSlots,
    RowDraw,
    Section,
    SlotDraw,
    sums_of,
)
from khop.sampling.on_device.inputs import EMPTY, Inputs
from khop.sampling.on_device.type_nodes import FrontierRows, SlotKeys, TypeNodes
from khop.schema import EdgeType, NodeType

_ALIGNED = 16  # slots: sections begin at multiples of it, so that kernels are compiled for one alignment


@dataclass(frozen=True)
class HopPlan:
    """The draws of one hop."""

    hop: Hop
    frontier: Mapping[NodeType, FrontierRows]
    slots: Mapping[NodeType, SlotKeys]  # by source type
    draws: Mapping[EdgeType, DeviceDraw]  # edge types with a fanout of 0, no rows or no edges have none

    def drawn(self, edge_type: EdgeType) -> Drawn:
        """Return the edges of a draw, or rows without slots if nothing is drawn."""
        draw = self.draws.get(edge_type)
        if draw is not None:
            return draw.drawn
        rows = self.frontier[edge_type[2]].nodes
        edges = rows[:0] if self.hop.edge_ids else None
        counts = torch.zeros_like(rows, dtype=torch.int32)
        return DrawnSlots(Slots(rows[:0], counts, edges), sums_of(counts))


def plan_hop(plan: BatchPlan, hop: Hop, nodes: Mapping[NodeType, TypeNodes], inputs: Inputs) -> HopPlan:
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
    draws = {}
    for edge_type, first in firsts.items():
        source = edge_type[0]
        section = Section(nodes[source].numbers, slots[source], first, counts[edge_type])
        draws[edge_type] = _draw(plan, hop, edge_type, frontier[edge_type[2]], section, inputs)
    return HopPlan(hop, frontier, slots, draws)


def _room(plan: BatchPlan, hop: Hop, edge_type: EdgeType) -> int:
    """Return the slots of a draw: some for each row, or the capacity of all edges of the rows together."""
    level, fanout = hop.number - 1, hop.fanouts[edge_type]
    if fanout >= 0:
        return plan.capacities.rows[level][edge_type[2]] * fanout
    return max(1, plan.capacities.edges[level].get(edge_type, 0))  # 0: a first edge is an overflow


def _draw(
    plan: BatchPlan, hop: Hop, edge_type: EdgeType, frontier: FrontierRows, section: Section, inputs: Inputs
) -> DeviceDraw:
    arrays = plan.arrays[edge_type]
    capacity, ranges = frontier.nodes.numel(), None
    if arrays.limits is not None:
        ranges = torch.zeros(2 * capacity, dtype=torch.int64, device=plan.device)
    rows = Rows(
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
        expansion = Expansion(offsets, section.ids, edges, trees, overflow, omitted)
        drawn = DrawnRows(Expanded.of(section.keys, offsets, edges))
        return RowDraw(arrays, frontier, rows, section, expansion, drawn)
    counts = torch.zeros(capacity, dtype=torch.int32, device=plan.device)
    of_keys = DrawnSlots(Slots(section.keys, counts, edges), sums_of(counts))
    slots = Slots(section.ids, counts, edges)
    return SlotDraw(arrays, hop.fanouts[edge_type], frontier, rows, section, slots, of_keys, excluded)
