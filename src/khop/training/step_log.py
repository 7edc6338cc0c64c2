"""Log of a run's updates; their losses may be on their way from the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from khop.loading.streams import Event, Streams
from khop.training import traffic
from khop.training.checkpoint_writer import CheckpointWriter
from khop.training.finite import check_loss
from khop.training.gathered_step import GatheredStep
from khop.training.observer import Observer
from khop.training.trainer_state import TrainerState


@dataclass(frozen=True)
class DeviceLoss:
    """Loss of an update that a device computes."""

    sum: Tensor  # float64 (), over the seeds of all ranks; the current stream writes it
    streams: Streams
    behind: int  # updates after which the device has computed it


@dataclass(frozen=True)
class _Entry:
    """An update with a loss that is not known yet."""

    epoch: int
    step: int
    seeds: int  # of all ranks
    counts: Mapping[str, Mapping[str, list[float]]]  # seconds and traffic, for the log
    loss_sum: Tensor  # float64 (1), in host memory once the device has passed the event
    copied: Event


class StepLog:
    """Writes a line for each update, and adds its loss to the state.

    Losses of a device are read some updates later, when the device has computed them long since. Until then
    the sum in the state lacks them: `settled` reads all. If an observer raises, the loss that it was given is
    added to the state that is settled next.
    """

    def __init__(self, writer: CheckpointWriter | None, observer: Observer, checkpoint: Path) -> None:
        self._writer, self._observer = writer, observer
        self._checkpoint = checkpoint  # named in errors
        self._pending: deque[_Entry] = deque()
        self._free: list[Tensor] = []
        self._unadded: list[float] = []  # sums of losses that are logged, in order

    def add(self, state: TrainerState, step: GatheredStep, loss: DeviceLoss | None = None) -> TrainerState:
        """Log the update that ended before `state`; return the state with the losses that are known now.

        Without `loss` it is the one that the ranks have exchanged. Else its copy to the host is issued.
        """
        counts = traffic.step_record(step.seconds, step.traffic)
        position = (state.epoch, state.step - 1)
        if loss is None:
            self._log(position, step.loss_sum, step.seeds, counts)
            return self._added(state)
        streams = loss.streams
        on_host = self._free.pop() if self._free else streams.pinned(torch.zeros(1, dtype=torch.float64))
        on_host.copy_(loss.sum.view(1), non_blocking=True)
        copied = streams.record(streams.current())
        self._pending.append(_Entry(*position, step.seeds, counts, on_host, copied))
        return self._read(state, loss.behind)

    def settled(self, state: TrainerState) -> TrainerState:
        """Return the state with the losses of all updates. It waits for them."""
        return self._read(state, 0)

    def _read(self, state: TrainerState, behind: int) -> TrainerState:
        while len(self._pending) > behind:
            entry = self._pending.popleft()
            if not entry.copied.query():
                entry.copied.synchronize()
            loss_sum = float(entry.loss_sum)
            self._free.append(entry.loss_sum)
            check_loss(loss_sum, entry.epoch, entry.step, self._checkpoint)
            self._log((entry.epoch, entry.step), loss_sum, entry.seeds, entry.counts)
        return self._added(state)

    def _log(
        self,
        position: tuple[int, int],
        loss_sum: float,
        seeds: int,
        counts: Mapping[str, Mapping[str, list[float]]],
    ) -> None:
        epoch, step = position
        self._unadded.append(loss_sum)
        loss = loss_sum / max(seeds, 1)
        if self._writer is not None:
            self._writer.log_step({"epoch": epoch, "step": step, "loss": loss, "seeds": seeds, **counts})
        self._observer.stepped(epoch, step, loss)

    def _added(self, state: TrainerState) -> TrainerState:
        """Return the state with the losses that are logged."""
        unadded, self._unadded = self._unadded, []
        for loss_sum in unadded:
            state = replace(state, loss_sum=state.loss_sum + loss_sum)
        return state
