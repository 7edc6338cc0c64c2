"""Requests for the steps of a run, the batches made from their answers, and the position in the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import overload

import torch

from khop.arguments import mapping_of
from khop.batch import Batch
from khop.draw import DrawKey, Purpose
from khop.loading.source import BatchRequest, Drawn
from khop.loading.transfer import place
from khop.sampling.seeds import SeedOrder, check_fingerprint

State = Mapping[str, object]


def request_of(order: SeedOrder, epoch: int, step: int) -> BatchRequest:
    """Return the request for this rank's share of a step."""
    key = DrawKey.of(order.run_seed, Purpose.HOP, epoch, step)
    return BatchRequest(partial(order.share, epoch, step), key, epoch, step)


@dataclass(frozen=True)
class StepRequests(Sequence[BatchRequest]):
    """The requests for some steps of an epoch, each made when it is read."""

    order: SeedOrder
    epoch: int
    steps: range

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self.steps)

    @overload
    def __getitem__(self, index: int) -> BatchRequest: ...
    @overload
    def __getitem__(self, index: slice) -> StepRequests: ...
    def __getitem__(self, index: int | slice) -> BatchRequest | StepRequests:
        """Return the request for one step, or the requests for some of the steps."""
        if isinstance(index, slice):
            return replace(self, steps=self.steps[index])
        return request_of(self.order, self.epoch, self.steps[index])


def finished(drawn: Drawn, order: SeedOrder, position: Position, device: torch.device) -> Batch:
    """Wait in the current stream for a drawn batch, and insert the rows that are cached on the device.

    A batch that is not on its way there is copied.
    """
    if drawn.arrival is not None:
        drawn.arrival.wait()
    moved = place(drawn, device) if drawn.arrival is None else drawn
    filled = {t: rows.fill(moved.columns[t]) for t, rows in moved.device_rows.items()}
    return Batch(
        moved.sample,
        moved.seed_nodes,
        {**moved.columns, **filled},
        moved.seed_columns,
        position.epoch,
        position.step,
        num_global_seeds=order.num_global_seeds(position.step),
        world_size=order.world_size,
        spans=moved.spans,
        traffic=moved.traffic,
    )


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
        match mapping_of("loader state", state, "names to values, as state_dict() gives it"):
            case {"epoch": int(epoch), "step": int(step), "fingerprint": Mapping() as given} if bool not in (
                type(epoch),
                type(step),
            ):
                check_fingerprint(given, order.fingerprint)
            case _:
                raise ValueError(
                    f"loader state {dict(state)}: needs numbers epoch and step, and a fingerprint"
                )
        if epoch < 0 or not 0 <= step < order.num_steps:
            raise ValueError(
                f"loader state at epoch {epoch}, step {step}: an epoch has steps 0 to {order.num_steps - 1}"
            )
        return cls(epoch, step)
