"""Rows that are kept on the device: left out where a batch is made, and put in place where it arrives."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from khop.batch import Batch, DeviceRows, Sample
from khop.features.row_cache import RowCache
from khop.features.store import Rows
from khop.loading.columns import ColumnChoice
from khop.schema import NodeType


def rows_on_device(cache: RowCache, choice: ColumnChoice, sample: Sample) -> dict[NodeType, DeviceRows]:
    """The rows of a sample that need not be gathered, of each type of which the device keeps any.

    Rows of seeds are gathered all the same where columns of seeds are wanted, which are chosen on the host.
    """
    found = {}
    for node_type, names in choice.of_nodes.items():
        if cache.covers(node_type, names):
            slots = cache.find(node_type, sample.nodes[node_type])
            if node_type in choice.of_seeds and sample.seed_index[node_type].numel():
                slots[: int(sample.seed_index[node_type].max()) + 1] = -1
            rows = (slots >= 0).nonzero().view(-1)
            found[node_type] = DeviceRows(slots[rows], rows, (slots < 0).nonzero().view(-1))
    return found


def with_device_rows(batch: Batch, cache: RowCache, choice: ColumnChoice) -> Batch:
    """A batch that has reached the device of `cache`, with all rows of its columns."""
    columns = dict(batch.columns)
    for node_type, places in batch.on_device.items():
        names = choice.of_nodes[node_type]
        wanted = Rows(places.slots, names, as_float32=choice.as_float32.get(node_type, frozenset()))
        kept = cache.rows.known(node_type, wanted)
        columns[node_type] = {
            name: _together(places, kept[name], others) for name, others in columns[node_type].items()
        }
    return replace(batch, columns=columns, on_device={})


def _together(places: DeviceRows, kept: Tensor, others: Tensor) -> Tensor:
    count = places.rows.numel() + places.others.numel()
    rows = torch.empty((count, *others.shape[1:]), dtype=others.dtype, device=others.device)
    return rows.index_copy_(0, places.others, others).index_copy_(0, places.rows, kept)
