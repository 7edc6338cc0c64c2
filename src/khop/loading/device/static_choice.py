"""Batches that kernels of a GPU make: the reason why they must not, and batches with static shapes.

Modules that import Triton are imported on use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import torch

from khop.errors import Unsupported
from khop.kernels.card import CardAnswers, card_key
from khop.kernels.choice import BUILDS, why_no_kernels
from khop.loading.columns import DeferredColumns
from khop.loading.source import LoopProgress, State
from khop.sampling.seed_table import SeedTable
from khop.sampling.seeds import SeedOrder
from khop.schema import Schema

if TYPE_CHECKING:
    from khop.loading.device.batch_check import BatchCheck
    from khop.loading.device.device_source import DeviceSource, StaticBatches


def why_no_batches(device: torch.device, *, every: bool = False) -> str | None:
    """Return the reason why kernels must not make batches on a GPU of this process; None: they may.

    The first call on a card compares kernels with the CPU, bit by bit, which takes seconds; see `self_proof`.
    With `every`, all kernels are compared, also those with a kept verdict.
    """
    reason = why_no_kernels(device.index)
    if reason is not None:
        return reason
    module = import_module("khop.loading.device.self_proof")
    found: str | None = module.why_not_proven(device, list(module.CHECKS) if every else None, anew=every)
    return found


def kept_verdict(index: int) -> dict[str, str]:
    """Return the kept results of comparisons on a GPU, by name: "" for equal bits, else the difference."""
    answers = CardAnswers.of(card_key(index)).read()
    return {name: problem for name, problem in answers.items() if name != BUILDS}


def static_batches_of(
    source: DeviceSource | None,
    order: SeedOrder,
    progress: LoopProgress,
    schema: Schema,
    deferred: DeferredColumns,
    saved: State,
    check: BatchCheck | None = None,
) -> StaticBatches:
    """Return the batches of a loader with static shapes; Unsupported, with the reason, if there are none.

    `source` draws on a GPU; None: the CPU draws. `deferred` are columns that batches have by id, `saved` is
    the state of the capacities in a checkpoint. `check` compares the first batch of each epoch.
    """
    if order.micro_batches > 1:
        raise Unsupported("steps of several micro-batches are not recorded; leave micro_batches out")
    if isinstance(order.seeds, SeedTable):
        raise Unsupported("labels and weights of a khop.SeedTable are not recorded; leave launches out")
    if source is None:
        raise Unsupported(
            "the CPU draws the neighbors; place the edges where the GPU reads them: topology device or pinned"
        )
    module = import_module("khop.loading.device.device_source")  # imports Triton
    capacities = module.saved_capacities(saved, order.world_size, schema.edge_types)
    room = source.static(deferred, capacities)
    batches: StaticBatches = module.StaticBatches(room, order, progress, check)
    return batches
