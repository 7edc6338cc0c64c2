"""A draw writes into its section alone; its edges become CSR rows."""

from __future__ import annotations

import torch

from khop.sampling.on_device.cells import counts_of
from khop.sampling.on_device.device_draw import csr_buffers, sums_of
from khop.sampling.on_device.inputs import EMPTY
from support.device_batches import batch_of, device_batch, ring_sampler
from support.triton_rows import DEVICE


def test_slots_outside_the_section_are_not_written() -> None:
    batch = device_batch(ring_sampler(), batch_of(8))
    seeds, key = batch_of(8)
    batch.write(seeds, key)
    batch.launch()
    for hop in batch.hops:
        (draw,) = hop.draws.values()
        section = draw.section
        whole = section.slots.ids
        assert section.ids.data_ptr() == whole[section.first :].data_ptr()
        assert (whole[section.first + section.count :] == EMPTY).all()
        drawn = int(draw.drawn.slots.counts.sum())
        assert int((section.ids != EMPTY).sum()) == drawn > 0
    counts = counts_of(batch.cells.values)
    for output, hop in zip(batch.outputs, batch.hops, strict=True):
        ((edge_type, csr),) = output.items()
        assert counts[csr.edges] == int(hop.draws[edge_type].drawn.slots.counts.sum())
        assert int(csr.buffers.indptr[-1]) == counts[csr.edges]


def test_new_buffers_have_no_edges() -> None:
    buffers = csr_buffers(3, 5, DEVICE, edge_ids=False)
    assert buffers.indptr.tolist() == [0, 0, 0, 0]
    assert (buffers.indices.numel(), buffers.edge_ids) == (5, None)
    assert csr_buffers(3, 5, DEVICE, edge_ids=True).edge_ids is not None
    assert sums_of(torch.zeros(3000, dtype=torch.int32, device=DEVICE)).numel() >= 1
