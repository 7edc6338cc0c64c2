"""Placement of a rank's rows of a partitioned graph in memory that kernels of its GPU read."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from khop.distributed.partitioned_features import PartitionedFeatures
from khop.distributed.rank_rows import RankRows
from khop.features.store import Rows
from khop.features.table import read_rows
from khop.kernels.pitch import padded_pitch
from khop.loading.device_memory import OUT_OF_MEMORY, DeviceMemory, PinningRefused
from khop.loading.device_placement import DevicePlacement
from khop.loading.memory_plan import MemoryPlan, StoreSizes, WorkSizes, plans
from khop.loading.placed_stores import PlacedStores
from khop.schema import NodeType

_WHY = "as requested; this path is unproven: it has never run on GPUs"


def placed_rank_rows(
    features: PartitionedFeatures, request: DevicePlacement, memory: DeviceMemory, work: WorkSizes
) -> tuple[RankRows, PlacedStores]:
    """Copy this rank's rows of the requested columns of nodes; also return the plan, without stores.

    ValueError if they do not fit, or if a column is requested that no node type has.
    """
    free = memory.free()
    plan = next(plans(request, _sizes(features), work, free, proven=False))
    try:
        columns = _stored(features, plan, memory)
    except (OUT_OF_MEMORY, PinningRefused) as error:
        raise ValueError(
            f"{request.device}: rows of this rank could not be placed: {str(error).splitlines()[0]}. Give "
            'columns a smaller placement: "pinned", "host", or "mapped"'
        ) from error
    none = PlacedStores.none(request, work, memory.device)
    rows = RankRows(columns, features, memory.device, plan.pinned_columns)
    return rows, replace(none, plan=plan, line=f"rows of this rank on {plan.line(free, _WHY)}")


def _sizes(features: PartitionedFeatures) -> StoreSizes:
    """Return the bytes of this rank's rows of each column of nodes."""
    num_bytes: dict[str, int] = {}
    rows: dict[str, int] = {}
    for node_type, specs in features.specs.items():
        for name, spec in specs.items() if isinstance(node_type, str) else ():
            count, dtype = len(features.local_rows(node_type)), getattr(torch, spec.dtype)
            pitch = padded_pitch(torch.Size(spec.shape).numel(), dtype)
            num_bytes[name] = num_bytes.get(name, 0) + count * pitch * dtype.itemsize
            rows[name] = rows.get(name, 0) + count
    return StoreSizes(0, num_bytes, rows, sum(len(features.local_rows(t)) for t in features.specs))


def _stored(
    features: PartitionedFeatures, plan: MemoryPlan, memory: DeviceMemory
) -> dict[NodeType, dict[str, Tensor]]:
    found: dict[NodeType, dict[str, Tensor]] = {}
    for node_type, specs in features.specs.items():
        names = (
            [name for name in specs if plan.columns[name].is_read_by_gpu]
            if isinstance(node_type, str)
            else []
        )
        for name in names:
            assert isinstance(node_type, str)
            every = Rows(torch.arange(len(features.local_rows(node_type))), (name,))
            column = read_rows(features.pieces[node_type], specs, node_type, every)[name]
            of_type = found.setdefault(node_type, {})
            of_type[name] = memory.stored_rows(column, plan.columns[name])
    return found
