"""Choice of batches with static shapes, if the batches of a loader are sampled on a GPU."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from khop.errors import Unsupported
from khop.loading.columns import DeferredColumns
from khop.loading.source import LoopProgress, State
from khop.sampling.seeds import SeedOrder
from khop.schema import Schema

if TYPE_CHECKING:
    from khop.loading.device.device_source import DeviceSource, StaticBatches

SLOTS = 2  # batches in memory: one is made while the step computes with the other


def static_batches_of(
    source: DeviceSource | None,
    order: SeedOrder,
    progress: LoopProgress,
    schema: Schema,
    deferred: DeferredColumns,
    saved: State,
) -> StaticBatches:
    """Return the batches of a loader with static shapes; Unsupported, with the reason, if there are none.

    `source` draws on a GPU; None: the CPU draws. `deferred` are columns that batches have by id, `saved` is
    the state of the capacities in a checkpoint.
    """
    if order.micro_batches > 1:
        raise Unsupported("steps of several micro-batches are not recorded; leave micro_batches out")
    if source is None:
        raise Unsupported(
            "the CPU draws the neighbors; place the edges where the GPU reads them: topology device or pinned"
        )
    module = import_module("khop.loading.device.device_source")  # imports Triton
    capacities = module.saved_capacities(saved, order.world_size, schema.edge_types)
    room = source.static(SLOTS, deferred, capacities)
    batches: StaticBatches = module.StaticBatches(room, order, progress)
    return batches
