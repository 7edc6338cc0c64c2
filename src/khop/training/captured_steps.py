"""Training steps on batches that the device makes: two recorded calls for each step."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from khop.batch import Batch
from khop.kernels.dropout import dropout_key
from khop.kernels.philox import signed
from khop.loading.batch_slot import BatchSlot, StepInput
from khop.loading.streams import Event, Stream, Streams
from khop.training.move import in_dtype_of
from khop.training.tasks import Task


@dataclass(frozen=True)
class _Issued:
    """A batch that a stream makes, and the event after it; None: it has no place in the slot."""

    given: StepInput
    slot: int
    made: Event | None


class CapturedSteps:
    """Gradients of training steps. While one step computes, a stream of its own makes the next batches.

    The gradients are in `grad` of the parameters, in memory that stays the same. Averaging over ranks and the
    update are the caller's, after each step. A batch that exceeds a capacity is made on the CPU and computed
    without a recording, in its turn; its gradients differ from a recorded step's by the order of sums.

    `sampling` is the stream that makes batches, by default a new one.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        slots: Sequence[BatchSlot],
        streams: Streams,
        precision: torch.dtype = torch.float32,
        sampling: Stream | None = None,
    ) -> None:
        if precision not in (torch.float32, torch.float64, torch.bfloat16):
            raise ValueError(f"precision {precision}: must be torch.float32, float64 or bfloat16")
        if not slots:
            raise ValueError("slots are empty: give at least one, and two to make batches ahead")
        self.overflows = 0  # batches that exceeded a capacity
        self.traffic: Mapping[str, float] = {}  # of the last step's batch: rows in cached columns
        self._model, self._task, self._slots, self._streams = model, task, slots, streams
        self._precision = precision
        self._sampling = streams.side() if sampling is None else sampling
        self.gradients: list[Tensor] = []  # of the parameters, in the order of the model
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)
                self.gradients.append(parameter.grad)
        recorder = streams.recorder(streams.current())
        self._loss = torch.zeros((), dtype=torch.float64, device=streams.device)
        self._free: list[Event | None] = [None] * len(slots)  # the event after the last use of each slot
        self._steps = [recorder.record(partial(self._of_slot, slot)) for slot in slots]

    def losses(self, inputs: Iterable[StepInput]) -> Generator[Tensor]:
        """Yield the loss of each step, once its gradients are issued to the current stream.

        The loss is a float64 scalar on the device; the next step overwrites it. The caller's current
        stream must be the same for all steps.
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
        if free is not None:
            self._streams.wait(self._sampling, free)
        with self._streams.issuing(self._sampling):
            slot.make(given)
        return _Issued(given, number, self._streams.record(self._sampling))

    def _step(self, issued: _Issued) -> Tensor:
        slot, current = self._slots[issued.slot], self._streams.current()
        if issued.made is not None:
            issued.made.synchronize()  # long done, as a rule: the device has computed the step before since
            if not slot.overflowed():
                self._streams.wait(current, issued.made)
                self._steps[issued.slot].replay()
                self._free[issued.slot] = self._streams.record(current)
                self.traffic = slot.traffic()
                return self._loss
        self.overflows += 1
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
        with self._autocast(), dropout_key(key):
            losses = self._task.losses(self._model(in_dtype_of(self._model, batch)), batch)
        loss = (losses * weights.to(losses.dtype)).sum()
        torch.autograd.backward(loss)
        self._loss.copy_(loss.detach())

    def _autocast(self) -> AbstractContextManager[object]:
        # Without its cache of cast weights, which would keep memory of a recording in use.
        enabled = self._precision == torch.bfloat16
        kind = self._streams.device.type
        return torch.autocast(kind, torch.bfloat16, enabled=enabled, cache_enabled=False)
