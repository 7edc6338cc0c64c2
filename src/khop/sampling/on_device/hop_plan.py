"""One hop of a batch with static shapes: where its draws write, and what it expands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from khop.kernels.triton.rows import Rows, Slots
from khop.rules.rule import Hop
from khop.sampling.on_device.batch_plan import BatchPlan
from khop.sampling.on_device.device_draw import DeviceDraw, Section
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

    def drawn(self, edge_type: EdgeType) -> Slots:
        """Return the slots of a draw with keys as ids, or rows without slots if nothing is drawn."""
        draw = self.draws.get(edge_type)
        if draw is not None:
            return Slots(draw.section.keys, draw.drawn.counts, draw.drawn.edges)
        rows = self.frontier[edge_type[2]].nodes
        edges = rows[:0] if self.hop.edge_ids else None
        return Slots(rows[:0], torch.zeros_like(rows, dtype=torch.int32), edges)


def plan_hop(plan: BatchPlan, hop: Hop, nodes: Mapping[NodeType, TypeNodes], inputs: Inputs) -> HopPlan:
    """Allocate the slots of a hop and return its draws."""
    level = hop.number - 1
    rows = plan.capacities.rows[level]
    frontier = {
        t: of_type.frontier(level, rows[t]) if plan.is_layered or level == 0 else of_type.fresh(level)
        for t, of_type in nodes.items()
    }
    firsts: dict[EdgeType, int] = {}
    sizes = dict.fromkeys(nodes, 0)
    wide = set()
    for edge_type, fanout in hop.fanouts.items():
        count, source = rows[edge_type[2]] * fanout, edge_type[0]
        if count == 0 or plan.arrays[edge_type].csc.num_edges == 0:
            continue
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
        count = rows[edge_type[2]] * hop.fanouts[edge_type]
        section = Section(nodes[source].numbers, slots[source], first, count)
        draws[edge_type] = _draw(plan, hop, edge_type, frontier[edge_type[2]], section, inputs)
    return HopPlan(hop, frontier, slots, draws)


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
    counts = torch.zeros(capacity, dtype=torch.int32, device=plan.device)
    drawn = Slots(section.ids, counts, edges)
    excluded = inputs.excluded.get(edge_type)
    return DeviceDraw(arrays, hop.fanouts[edge_type], frontier, rows, section, drawn, excluded)
