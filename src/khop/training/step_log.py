"""Log of a run's updates; their losses may be on their way from the device."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path

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

    sums: Tensor  # float64 (ranks), or () over the seeds of all ranks; the current stream writes it
    streams: Streams
    behind: int  # updates after which the device has computed it


@dataclass(frozen=True)
class _Entry:
    """An update with a loss that is not known yet."""

    epoch: int
    step: int
    gathered: GatheredStep  # without losses
    sums: Tensor  # float64 (ranks) or (1), in host memory once the device has passed the event
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
        position = (state.epoch, state.step - 1)
        if loss is None:
            self._log(*position, step)
            return self._added(state)
        streams, sums = loss.streams, loss.sums.view(-1)
        has_room = self._free and self._free[-1].shape == sums.shape
        on_host = self._free.pop() if has_room else streams.pinned(sums.new_zeros(sums.shape, device="cpu"))
        on_host.copy_(sums, non_blocking=True)
        copied = streams.record(streams.current())
        self._pending.append(_Entry(*position, step, on_host, copied))
        return self._read(state, loss.behind)

    def settled(self, state: TrainerState) -> TrainerState:
        """Return the state with the losses of all updates. It waits for them."""
        return self._read(state, 0)

    def _read(self, state: TrainerState, behind: int) -> TrainerState:
        while len(self._pending) > behind:
            entry = self._pending.popleft()
            if not entry.copied.query():
                entry.copied.synchronize()
            gathered = entry.gathered.with_losses(entry.sums)
            self._free.append(entry.sums)
            check_loss(gathered.loss_sum, entry.epoch, entry.step, self._checkpoint)
            self._log(entry.epoch, entry.step, gathered)
        return self._added(state)

    def _log(self, epoch: int, step: int, gathered: GatheredStep) -> None:
        loss_sum, seeds = gathered.loss_sum, gathered.seeds
        self._unadded.append(loss_sum)
        loss = loss_sum / max(seeds, 1)
        if self._writer is not None:
            counts = traffic.step_record(gathered.seconds, gathered.traffic)
            self._writer.log_step({"epoch": epoch, "step": step, "loss": loss, "seeds": seeds, **counts})
        self._observer.stepped(epoch, step, loss)

    def _added(self, state: TrainerState) -> TrainerState:
        """Return the state with the losses that are logged."""
        unadded, self._unadded = self._unadded, []
        for loss_sum in unadded:
            state = replace(state, loss_sum=state.loss_sum + loss_sum)
        return state
