"""The draw of one hop and edge type on the device with static shapes, and its edges as CSR arrays."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from khop.kernels.triton.rows import Rows, Slots
from khop.kernels.triton.sample_uniform import sample_uniform
from khop.kernels.triton.to_csr import CsrBuffers, Place, num_row_blocks, row_sums, to_csr
from khop.rules.uniform import Uniform
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
    rule: Uniform
    fanout: int
    frontier: FrontierRows
    rows: Rows
    section: Section
    drawn: Slots

    def run(self) -> None:
        """Draw into the section, and mark the drawn nodes in the table of the source type."""
        section = self.section
        marks = section.source.marks(section.first)
        sample_uniform(self.arrays.csc, self.rows, self.fanout, self.rule.replacement, self.drawn, marks)
        section.source.reach(section.slots, section.first, section.count, self.frontier.trees)


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
