"""Training steps as CUDA graphs, on batches that a device makes: two recorded launches per step.

Importing this module imports Triton.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from khop.arguments import check_word
from khop.batch import Batch
from khop.distributed.processes.group import Group
from khop.errors import Unsupported
from khop.kernels.activations import dropout_key
from khop.kernels.philox import signed
from khop.loading.device.batch_slot import BatchSlot, StepInput
from khop.loading.device.device_source import StaticBatches, StaticLoop
from khop.loading.device.streams import Event, Stream, Streams
from khop.training.gradients import BucketAverage
from khop.training.linear_setup import products
from khop.training.optimizer_settings import clip_gradients, square_sum
from khop.training.run_output import DeviceLoss, wait_for
from khop.training.settings import Precision, TrainerSettings
from khop.training.step_clock import StepClock
from khop.training.steps import ComputedStep, dropout_seed, in_dtype_of
from khop.training.tasks import Task
from khop.training.traffic import OVERFLOWS


@dataclass(frozen=True)
class _Issued:
    """A batch that a stream makes, and the event after it; None if it does not fit in the slot."""

    given: StepInput
    slot: int
    made: Event | None


class CapturedSteps:
    """Gradients of training steps. While a step computes, a separate stream makes the next batches.

    The gradients are in `grad` of the parameters, at fixed addresses. After each step, the caller averages
    over ranks and updates. A batch that exceeds a capacity is made on the CPU and computed without a
    recording, in order; its gradients differ from a recorded step's by the order of sums. `sampling` is the
    stream that makes batches, by default a new one. `wait` lets the host wait for an event.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        slots: Sequence[BatchSlot],
        streams: Streams,
        precision: Precision = "float32",
        sampling: Stream | None = None,
        wait: Callable[[Event], None] = lambda event: event.synchronize(),
    ) -> None:
        check_word("precision", precision, Precision)
        if not slots:
            raise ValueError("slots is empty: give at least one slot, or two to make batches ahead")
        self.overflows = 0  # batches that exceeded a capacity
        self.slot: BatchSlot | None = None  # of the last step's batch; None: it exceeded a capacity
        self.traffic: Mapping[str, float] = {}  # of the last step's batch: rows in cached columns
        self._model, self._task, self._slots, self._streams = model, task, slots, streams
        self._precision, self._wait = precision, wait
        self._sampling = streams.side() if sampling is None else sampling
        self.gradients: list[Tensor] = []  # of the parameters, in the order of the model
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)
                self.gradients.append(parameter.grad)
        record = streams.recorder(streams.current())
        self._loss = torch.zeros((), dtype=torch.float64, device=streams.device)
        self._made: list[Event | None] = [None] * len(
            slots
        )  # after a batch for which the host has not waited
        self._free: list[Event | None] = [None] * len(slots)  # the event after the last use of each slot
        self._steps = [record(partial(self._of_slot, slot)) for slot in slots]

    def losses(self, inputs: Iterable[StepInput]) -> Generator[Tensor]:
        """Yield the loss of each step, once its gradients are issued to the current stream.

        The loss is a float64 scalar on the device; the next step overwrites it. The caller's current
        stream must be the same for all steps. The loop may be left early, and begun again.
        """
        ahead: deque[_Issued] = deque()
        for number, given in enumerate(inputs):
            ahead.append(self._issue(number % len(self._slots), given))
            if len(ahead) == len(self._slots):
                yield self._step(ahead.popleft())
        while ahead:
            yield self._step(ahead.popleft())

    def _issue(self, number: int, given: StepInput) -> _Issued:
        slot, free = self._slots[number], self._free[number]
        if not slot.fits(given):
            return _Issued(given, number, None)
        last = self._made[number]
        if last is not None:  # of a loop that was left early, because the device may still read its input
            self._wait(last)
        if free is not None:
            self._streams.wait(self._sampling, free)
        with self._streams.issuing(self._sampling):
            slot.make(given)
        made = self._made[number] = self._streams.record(self._sampling)
        return _Issued(given, number, made)

    def _step(self, issued: _Issued) -> Tensor:
        slot, current = self._slots[issued.slot], self._streams.current()
        if issued.made is not None:
            self._wait(issued.made)  # usually done, because the device has computed the previous step since
            self._made[issued.slot] = None
            if not slot.overflowed():
                self._streams.wait(current, issued.made)
                self._steps[issued.slot]()
                self.slot = slot
                self._free[issued.slot] = self._streams.record(current)
                self.traffic = slot.traffic()
                return self._loss
        self.overflows += 1
        self.slot = None
        given = issued.given
        device = self._streams.device
        weights = torch.full((given.num_losses,), given.weight, dtype=torch.float64, device=device)
        key = torch.full((1,), signed(given.dropout_key.value), device=device)
        batch = slot.exact(given)
        self._compute(batch, weights, key)
        self.traffic = batch.traffic
        return self._loss

    def _of_slot(self, slot: BatchSlot) -> None:
        self._compute(slot.batch, slot.weights, slot.dropout_key)

    def _compute(self, batch: Batch, weights: Tensor, key: Tensor) -> None:
        torch._foreach_zero_(self.gradients)
        with products(self._precision):
            with self._autocast(), dropout_key(key):
                losses = self._task.losses(self._model(in_dtype_of(self._model, batch)), batch)
            loss = (losses * weights.to(losses.dtype)).sum()
            torch.autograd.backward(loss)
        self._loss.copy_(loss.detach())

    def _autocast(self) -> AbstractContextManager[object]:
        # Without autocast's weight cache, which would keep memory of a recording in use.
        enabled = self._precision == "bfloat16"
        kind = self._streams.device.type
        return torch.autocast(kind, torch.bfloat16, enabled=enabled, cache_enabled=False)


class RecordedSteps:
    """Steps that replay recorded launches: one call for the next batch, and one for the gradients.

    Batches are made ahead on a separate stream. A batch that exceeds the recorded shapes is made and computed
    operation by operation, in order. Averaging over ranks and clipping are not recorded, and are the same for
    both kinds of steps, so that one rank may exceed the shapes while others replay.
    """

    def __init__(
        self, model: nn.Module, task: Task, batches: StaticBatches, settings: TrainerSettings, group: Group
    ) -> None:
        room = batches.room
        self._batches, self._settings, self._group = batches, settings, group
        model.train()
        self._steps = CapturedSteps(
            model,
            task,
            room.slots,
            room.streams,
            settings.precision,
            room.stream,
            partial(wait_for, group=group),
        )
        self._average = BucketAverage(group, self._steps.gradients)
        self.streams: Streams | None = room.streams
        self._loss = torch.zeros((), dtype=torch.float64, device=room.streams.device)
        # A slot is filled again after the step that used it.
        self._device_loss = DeviceLoss(self._loss, room.streams, behind=len(room.slots))

    @property
    def overflows(self) -> int:
        """Batches of this rank that exceeded the recorded shapes."""
        return self._steps.overflows

    def epoch(self, epoch: int, clock: StepClock) -> Generator[ComputedStep]:
        """Yield the remaining steps of an epoch; see Steps."""
        loop, order = self._batches.epoch(epoch), self._batches.order
        given: deque[StepInput] = deque()
        with loop.compared(), closing(self._inputs(loop, epoch, given)) as inputs:
            for step, loss in zip(loop.steps, self._steps.losses(inputs), strict=True):
                clock.lap("computing", "launches")
                of_step = given.popleft()
                loop.made(self._steps.slot, of_step.seeds)
                with self._group.exchanging("exchanging gradients", epoch, step):
                    self._exchange(loss, order.num_global_seeds(step))
                clock.lap("communicating", "gradients")
                loop.received(step)
                shapes = self._batches.room.slots[0].batch
                batch = replace(
                    shapes,
                    epoch=epoch,
                    step=step,
                    num_global_seeds=order.num_global_seeds(step),
                    traffic={**self._steps.traffic, OVERFLOWS: int(self._steps.slot is None)},
                )
                yield ComputedStep(batch, of_step.num_seeds, self._device_loss)

    def state(self) -> dict[str, object]:
        """Return the capacities of the batches; see Steps."""
        return self._batches.state()

    def _inputs(self, loop: StaticLoop, epoch: int, noted: deque[StepInput]) -> Generator[StepInput]:
        """Yield the inputs of the steps with their dropout keys, and record them."""
        seed, rank = self._settings.seed, self._group.rank
        with closing(loop.inputs()) as inputs:
            for step, given in zip(loop.steps, inputs, strict=True):
                noted.append(given)
                yield replace(given, dropout_key=dropout_seed(seed, epoch, step, rank))

    def _exchange(self, loss: Tensor, seeds: int) -> None:
        """Average the gradients over the ranks and clip them; keep the sum of this rank's losses."""
        self._average.average()
        # A rank's loss is weighted by the number of ranks per seed of the step.
        torch.mul(loss, seeds / self._group.world_size, out=self._loss)
        limit = self._settings.optimizer.clip_norm
        if limit is not None:
            gradients = self._steps.gradients
            clip_gradients(gradients, square_sum(gradients), limit)


def why_not_recorded(model: nn.Module) -> str | None:
    """Return the reason why steps of a model cannot be recorded; None if none is known."""
    for name, module in model.named_modules():
        kind = f"{name or 'the model'} ({type(module).__name__})"
        if getattr(module, "running_mean", None) is not None or isinstance(
            module, nn.modules.batchnorm._BatchNorm
        ):
            return f"{kind} computes statistics over the rows of a batch, and recorded batches are padded"
        if getattr(module, "sparse", False) is True or hasattr(module, "take_gradients"):
            return f"{kind} has sparse gradients, whose number of rows changes"
    return None


def recorded_steps(
    model: nn.Module, task: Task, batches: StaticBatches, settings: TrainerSettings, group: Group
) -> RecordedSteps:
    """Record the steps of a model; Unsupported, with the reason, if that fails on this rank."""
    reason = why_not_recorded(model)
    if reason is not None:
        raise Unsupported(reason)
    try:
        return RecordedSteps(model, task, batches, settings, group)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # an operation that synchronizes with the device cannot be recorded
        raise Unsupported(f"recording the step failed: {str(error).splitlines()[0]}") from error
