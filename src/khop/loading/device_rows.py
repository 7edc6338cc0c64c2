"""Rows cached on the device: skipped when a batch is made, inserted after it is copied."""

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
    """Return the rows of a sample that need not be gathered, for each type with cached rows.

    If seed columns are requested, the rows of seeds are gathered anyway: seed columns are selected on the
    host.
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
    """Insert the cached rows into a batch that is on the device of `cache`."""
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
