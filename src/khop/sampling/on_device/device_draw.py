"""The draw of one hop and edge type on the device with static shapes, and its edges as CSR arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from khop.kernels.triton.exclude_edges import ExcludedPairs, exclude_edges
from khop.kernels.triton.rows import Rows, Slots
from khop.kernels.triton.sample_smallest import EdgeOrder, SourceOrder, sample_smallest
from khop.kernels.triton.sample_uniform import sample_uniform
from khop.kernels.triton.sample_weighted import sample_weighted
from khop.kernels.triton.time_ranges import time_ranges
from khop.kernels.triton.to_csr import CsrBuffers, Place, num_row_blocks, row_sums, to_csr
from khop.sampling.on_device.cells import Cell
from khop.sampling.on_device.edge_arrays import EdgeArrays
from khop.sampling.on_device.type_nodes import FrontierRows, Numbers, SlotKeys


@dataclass(frozen=True)
class Section:
    """The slots of one edge type among those of all edge types with its source type."""

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
class DeviceDraw:
    """In-edges of a hop's frontier, of one edge type."""

    arrays: EdgeArrays
    fanout: int
    frontier: FrontierRows
    rows: Rows  # the frontier as kernels read it; `ranges` are written by time limits
    section: Section
    drawn: Slots
    excluded: ExcludedPairs | None = None  # edges that are left out after the draw

    def run(self) -> None:
        """Draw into the section, and mark the drawn nodes in the table of the source type."""
        section, csc, sums = self.section, self.arrays.csc, self.arrays.sums
        replacement, after = self.arrays.replacement, section.source.marks(section.first)
        marks = after if self.excluded is None else None
        self._limit()
        if self.arrays.order is not None:
            sample_smallest(csc, self.rows, self.fanout, self._order(), self.drawn, marks)
        elif sums is None:
            sample_uniform(csc, self.rows, self.fanout, replacement, self.drawn, marks)
        else:
            sample_weighted(csc, sums, self.rows, self.fanout, replacement, self.drawn, marks)
        if self.excluded is not None:
            exclude_edges(self.frontier.nodes, self.excluded, self.drawn, after)
        section.source.reach(section.slots, section.first, section.count, self.frontier.trees)

    def _order(self) -> SourceOrder | EdgeOrder:
        """Return the order of the hop: numbers of sources have its counter word."""
        order = self.arrays.order
        assert order is not None
        return replace(order, stream=self.rows.stream) if isinstance(order, SourceOrder) else order

    def _limit(self) -> None:
        """Find the edges of each row that its time limit allows."""
        limits, trees, ranges = self.arrays.limits, self.frontier.trees, self.rows.ranges
        if limits is None:
            return
        assert ranges is not None
        assert trees is not None
        assert trees.until is not None
        # The latest edges are all edges of a range with as many: a draw returns such a row whole.
        most = self.fanout if limits.is_latest else -1
        time_ranges(self.arrays.csc, limits.times, self.rows, trees.until, ranges, limits.window, most)


@dataclass(frozen=True)
class CsrOutput:
    """The edges of one hop and type as CSR arrays."""

    drawn: Slots  # with keys of the source type's table as ids
    source: Numbers
    first: Cell  # the row of the output that is the hop's first row
    edges_before: Cell  # edges in the output without this hop's
    edges: Cell  # with this hop's
    buffers: CsrBuffers
    sums: Tensor  # int32 (blocks of rows)

    def run(self) -> None:
        """Write the edges; all nodes of the hop must have local ids."""
        row_sums(self.drawn.counts, self.sums)
        numbering = self.source.numbering
        place = Place(self.first.value, self.edges_before.value, self.edges.value)
        to_csr(self.drawn, self.sums, numbering.table, numbering.base, place, self.buffers)


def csr_buffers(rows: int, edges: int, device: torch.device, *, edge_ids: bool) -> CsrBuffers:
    """Return CSR arrays without edges."""
    return CsrBuffers(
        torch.zeros(rows + 1, dtype=torch.int64, device=device),
        torch.zeros(edges, dtype=torch.int32, device=device),
        torch.zeros(edges, dtype=torch.int64, device=device) if edge_ids else None,
    )


def sums_of(counts: Tensor) -> Tensor:
    """Return room for the sums of blocks of rows."""
    return torch.empty(num_row_blocks(counts.numel()), dtype=torch.int32, device=counts.device)
