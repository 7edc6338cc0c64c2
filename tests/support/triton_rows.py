"""Operands of the device kernels from those of the CPU core, and their results in its form."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from khop.draw import Neighbors
from khop.kernels.csc import Csc
from khop.kernels.edge_times import HopRows
from khop.kernels.philox import signed
from khop.kernels.triton.rows import DeviceRows, Slots
from support import triton_interpreter as interpreter

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
UNUSED = 77  # entries behind the count: no row of a graph in these tests
if DEVICE.type == "cpu":
    interpreter.correct()


def on_device(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.to(DEVICE)


def csc_on_device(csc: Csc) -> Csc:
    return Csc(csc.indptr.to(DEVICE), csc.indices.to(DEVICE), csc.num_sources)


def rows_on_device(rows: HopRows, spare: int = 3) -> DeviceRows:
    """The rows in tensors with room for more; what stands there must not matter."""
    count = rows.nodes.numel()
    return DeviceRows(
        padded(rows.nodes, count + spare),
        torch.tensor([count], dtype=torch.int32, device=DEVICE),
        torch.tensor([signed(rows.key.value)], device=DEVICE),
        rows.stream,
        on_device(rows.original_ids),
        None if rows.tree is None else padded(rows.tree, count + spare),
        None if rows.ranges is None else padded(rows.ranges, 2 * (count + spare)),
    )


def padded(values: Tensor, capacity: int) -> Tensor:
    behind = torch.full((capacity - values.numel(),), UNUSED, dtype=values.dtype)
    return torch.cat([values, behind]).to(DEVICE)


def empty_slots(rows: DeviceRows, per_row: int, dtype: torch.dtype) -> Slots:
    """Slots with edge positions, filled with numbers that no kernel writes."""
    slots = Slots.empty(rows.capacity, per_row, dtype, rows.nodes)
    edges = torch.empty(slots.ids.numel(), dtype=torch.int64, device=DEVICE)
    for tensor in (slots.ids, slots.counts, edges):
        tensor.fill_(-77)
    return replace(slots, edges=edges)


def neighbors(slots: Slots, rows: int) -> Neighbors:
    """Slots in the form of `sample_hop`; checks that unused slots and rows say so."""
    ids, counts, edges = (tensor.cpu() for tensor in (slots.ids, slots.counts, slots.edges))
    per_row = ids.numel() // counts.numel()
    used = torch.arange(per_row) < counts[:, None]
    assert counts[rows:].sum() == 0
    for tensor in (ids, edges):
        assert ((tensor.view(-1, per_row) >= 0) == used).all()
    used = used.flatten()
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts[:rows].long().cumsum(0)])
    return Neighbors(offsets, ids[used], edges[used])


def assert_same(found: Neighbors, expected: Neighbors) -> None:
    assert torch.equal(found.offsets, expected.offsets)
    assert torch.equal(found.nodes, expected.nodes)
    assert torch.equal(found.edges, expected.edges)
