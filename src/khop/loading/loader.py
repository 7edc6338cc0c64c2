"""Batch construction, and the position of a loader in a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic

import torch

from khop.arguments import mapping_of
from khop.batch import Batch, Columns, Span
from khop.draw import DrawKey, Purpose
from khop.features.row_cache import RowCache
from khop.features.store import FeatureStore
from khop.loading.columns import ColumnChoice, gather_columns
from khop.loading.device_rows import rows_on_device, with_device_rows
from khop.loading.transfer import place, stage
from khop.sampling.sampler import Sampler
from khop.sampling.seeds import SeedOrder, check_fingerprint

State = Mapping[str, object]


@dataclass(frozen=True)
class BatchMaker:
    """Maker of batch (epoch, step) of a run: a pure function, called from several threads at once."""

    order: SeedOrder
    sampler: Sampler
    features: FeatureStore | None  # None if no column was requested
    columns: ColumnChoice
    device: torch.device  # device of the finished batch
    on_device: RowCache = field(default_factory=RowCache.empty)  # node rows already on the device

    def batch(self, epoch: int, step: int) -> Batch:
        """Make this rank's share of one step, with its columns, ready for `placed`."""
        started = monotonic()
        seeds = self.order.share(epoch, step)
        sample = self.sampler.sample(seeds, DrawKey.of(self.order.run_seed, Purpose.HOP, epoch, step))
        sampling = Span.since(started, "sampling")
        columns: Columns = {}
        seed_columns: Columns = {}
        on_device = rows_on_device(self.on_device, self.columns, sample)
        if self.features is not None:
            sample, columns, seed_columns = gather_columns(self.features, self.columns, sample, on_device)
        batch = Batch(
            sample,
            {node_type: sample.nodes[node_type][index] for node_type, index in sample.seed_index.items()},
            columns,
            seed_columns,
            epoch,
            step,
            num_global_seeds=self.order.num_global_seeds(step),
            world_size=self.order.world_size,
            spans=(sampling, Span.since(sampling.ended, "gathering")),
            on_device=on_device,
        )
        return stage(batch, self.device)

    def placed(self, batch: Batch) -> Batch:
        """Copy a batch to the device and insert the rows that are cached there."""
        batch = place(batch, self.device)
        return with_device_rows(batch, self.on_device, self.columns) if batch.on_device else batch


@dataclass(frozen=True)
class Position:
    """Epoch and step of the next batch that the consumer has not received."""

    epoch: int = 0
    step: int = 0

    def after(self, num_steps: int) -> Position:
        """Return the next position; the last step of an epoch is followed by step 0 of the next epoch."""
        if self.step + 1 < num_steps:
            return Position(self.epoch, self.step + 1)
        return Position(self.epoch + 1)

    def state(self, order: SeedOrder) -> dict[str, object]:
        """Return plain values for a file, with the fingerprint that must be equal on load."""
        return {"epoch": self.epoch, "step": self.step, "fingerprint": dict(order.fingerprint)}

    @classmethod
    def of_state(cls, state: State, order: SeedOrder) -> Position:
        """Return the position that `state` describes; ValueError if it does not fit this order."""
        mapping_of("loader state", state, "names to values, as state_dict() gives it")
        epoch, step, fingerprint = (state.get(name) for name in ("epoch", "step", "fingerprint"))
        numbers = [one for one in (epoch, step) if isinstance(one, int) and not isinstance(one, bool)]
        if len(numbers) != 2 or not isinstance(fingerprint, Mapping):
            raise ValueError(f"loader state {dict(state)}: needs numbers epoch and step, and a fingerprint")
        epoch, step = numbers
        check_fingerprint(fingerprint, order.fingerprint)
        if epoch < 0 or not 0 <= step < order.num_steps:
            raise ValueError(
                f"loader state at epoch {epoch}, step {step}: an epoch has steps 0 to {order.num_steps - 1}"
            )
        return cls(epoch, step)
