"""Training steps as CUDA graphs, on batches that a device makes: two recorded launches per step.

Importing this module imports Triton.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial, reduce

import torch
from torch import Tensor, nn

from khop.arguments import check_word
from khop.batch import Batch
from khop.distributed.processes.group import Group
from khop.errors import Unsupported
from khop.kernels.activations import dropout_key
from khop.kernels.linear import AutocastWeights
from khop.kernels.philox import signed
from khop.loading.device.batch_slot import BatchSlot, StepInput
from khop.loading.device.device_source import StaticBatches, StaticLoop
from khop.loading.device.streams import Event, Stream, Streams
from khop.loading.source import Position
from khop.sampling.on_device.capacities import Capacities
from khop.training.gradients import BucketAverage
from khop.training.linear_setup import products
from khop.training.optimizer_settings import clip_gradients, square_sum
from khop.training.run_output import DeviceLoss, wait_for
from khop.training.settings import Precision, TrainerSettings
from khop.training.step_clock import StepClock
from khop.training.steps import ComputedStep, dropout_seed, in_dtype_of
from khop.training.tasks import Task
from khop.training.traffic import OVERFLOWS
from khop.training.trainer_state import dense_buffers, restore_buffers


@dataclass(frozen=True)
class _Issued:
    """A batch that a stream makes, and the event after it; None if it does not fit in the slot."""

    given: StepInput
    slot: int
    made: Event | None


class CapturedSteps:
    """Gradients of training steps. While a step computes, a separate stream makes the next batches.

    The gradients are in `grad` of the parameters, at fixed addresses. After each step, the caller averages
    over ranks and updates. A batch that exceeds a capacity is made and computed without a recording, in
    order; its gradients differ from a recorded step's by the order of sums. `sampling` is the
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
        self._autocast_weights = AutocastWeights()
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
            self._wait(issued.made)  # for a slow device, which computes the step before meanwhile
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
        # The batch shares the tables of the batches before it, and of those that follow.
        self._streams.wait(current, self._streams.record(self._sampling))
        weights = torch.full((given.num_losses,), given.weight, dtype=torch.float64, device=device)
        key = torch.full((1,), signed(given.dropout_key.value), device=device)
        batch = slot.exact(given)
        self._streams.wait(self._sampling, self._streams.record(current))
        self._compute(batch, weights, key)
        self.traffic = batch.traffic
        return self._loss

    def _of_slot(self, slot: BatchSlot) -> None:
        self._compute(slot.batch, slot.weights, slot.dropout_key)

    def _compute(self, batch: Batch, weights: Tensor, key: Tensor) -> None:
        torch._foreach_zero_(self.gradients)
        self._autocast_weights.update()  # the optimizer has changed the weights
        with products(self._precision):
            with self._autocast(), self._autocast_weights.used(), dropout_key(key):
                losses = self._task.losses(self._model(in_dtype_of(self._model, batch)), batch)
            loss = (losses * weights.to(losses.dtype)).sum()
            torch.autograd.backward(loss)
        self._loss.copy_(loss.detach())

    def _autocast(self) -> AbstractContextManager[object]:
        # Without autocast's weight cache, which would keep memory of a recording in use: see AutocastWeights.
        enabled = self._precision == "bfloat16"
        kind = self._streams.device.type
        return torch.autocast(kind, torch.bfloat16, enabled=enabled, cache_enabled=False)


OVERFLOWS_TO_ENLARGE, OF_BATCHES = 2, 100  # shapes are enlarged after 2 overflows in 100 batches of all ranks


@dataclass
class Exceeded:
    """Steps with batches that exceeded the shapes: a pure function of the batches, also after a resume.

    Steps are numbered through all epochs. Every rank knows a step's overflows at most `late` steps later. A
    decision before step n counts steps up to n - `late`.
    """

    late: int
    window: int  # steps
    since: int = 0  # first step that counts: of the current shapes, or later if they could not be enlarged
    steps: list[int] = field(default_factory=list)  # one entry for each batch, in order

    def add(self, step: int, batches: int) -> None:
        """Add the batches of all ranks that exceeded the shapes in a step."""
        oldest = step - self.late - self.window
        self.steps = [known for known in self.steps if known > oldest] + [step] * batches

    def counted(self, at: int) -> list[int]:
        """Return the entries that count in a decision before the step `at`."""
        last = at - self.late
        return [step for step in self.steps if max(self.since, last - self.window + 1) <= step <= last]

    def is_reason(self, at: int) -> bool:
        """Return True if the shapes must be enlarged before the step `at`."""
        return len(self.counted(at)) >= OVERFLOWS_TO_ENLARGE


class RecordedSteps:
    """Steps that replay recorded launches: one call for the next batch, and one for the gradients.

    Batches are made ahead on a separate stream. A batch that exceeds the recorded shapes is made and computed
    operation by operation, in order. Averaging over ranks and clipping are not recorded, and are the same for
    both kinds of steps, so that one rank may exceed the shapes while others replay. After 2 such batches
    among the last 100, all ranks enlarge the shapes before the same step, and record the steps anew. If that
    fails on a rank, all ranks keep their shapes.
    `saved` is the state in a checkpoint; `say` gets a line on rank 0.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        batches: StaticBatches,
        settings: TrainerSettings,
        group: Group,
        saved: Mapping[str, object],
        say: Callable[[str], None],
    ) -> None:
        room = batches.room
        self._model, self._task, self._batches = model, task, batches
        self._settings, self._group, self._say = settings, group, say
        self.overflows = 0  # batches of this rank that exceeded the recorded shapes
        slots = len(room.slots)
        # An input is requested when the step `slots` before it has been logged, whose loss is read as late.
        self._exceeded = Exceeded(2 * slots, max(1, OF_BATCHES // group.world_size))
        match saved:
            case {"world_size": group.world_size, "since": int() as since, "exceeded": [*steps]}:
                self._exceeded.since, self._exceeded.steps = since, [n for n in steps if isinstance(n, int)]
        model.train()
        self.streams: Streams | None = room.streams
        self._loss = torch.zeros((), dtype=torch.float64, device=room.streams.device)
        # A slot is filled again after the step that used it.
        self._device_loss = DeviceLoss(self._loss, room.streams, behind=slots)
        self._recorded: tuple[CapturedSteps, BucketAverage] | None = None
        self._record()

    def _record(self) -> None:
        """Record the steps with the buffers of the batches."""
        room, wait = self._batches.room, partial(wait_for, group=self._group)
        launched = room.slots, room.streams, self._settings.precision, room.stream, wait
        steps = CapturedSteps(self._model, self._task, *launched)
        self._recorded = steps, BucketAverage(self._group, steps.gradients)

    @property
    def _steps(self) -> CapturedSteps:
        assert self._recorded is not None, "_record comes first"
        return self._recorded[0]

    def epoch(self, epoch: int, clock: StepClock) -> Generator[ComputedStep]:
        """Yield the remaining steps of an epoch; see Steps."""
        loop, order = self._batches.epoch(epoch), self._batches.order
        given: deque[StepInput] = deque()
        with loop.compared(), closing(self._inputs(loop, epoch, given)) as inputs:
            for step, loss in zip(loop.steps, self._losses(inputs, loop), strict=True):
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
                self.overflows += self._steps.slot is None
                yield ComputedStep(batch, of_step.num_seeds, self._device_loss)
                del shapes, batch  # their memory must be free if larger buffers replace it

    def logged(self, epoch: int, step: int, counts: Mapping[str, Sequence[float]]) -> None:
        """Take the overflows of all ranks in a step; see Steps."""
        self._exceeded.add(epoch * self._batches.order.num_steps + step, int(sum(counts[OVERFLOWS])))

    def state(self) -> dict[str, object]:
        """Return the capacities of the batches, and the steps that exceeded them; see Steps."""
        known = {"since": self._exceeded.since, "exceeded": list(self._exceeded.steps)}
        return {**self._batches.state(), **known}

    def _losses(self, inputs: Iterator[StepInput], loop: StaticLoop) -> Generator[Tensor]:
        """Yield the loss of each step. Before a step that needs larger shapes, record the steps anew."""
        first, steps = loop.start.epoch * self._batches.order.num_steps, deque(loop.steps)

        def of_shapes() -> Generator[StepInput]:
            while steps and not self._exceeded.is_reason(first + steps[0]):
                steps.popleft()
                yield next(inputs)

        while steps:
            if self._exceeded.is_reason(first + steps[0]):
                self._enlarge(first + steps[0])
            yield from self._steps.losses(of_shapes())

    def _enlarge(self, at: int) -> None:
        """Enlarge the shapes before a step, on all ranks alike, and record the steps anew. Collective.

        If a rank has too little memory for it, the shapes stay until the next epoch, and for `window` steps.
        """
        counted, num_steps = self._exceeded.counted(at), self._batches.order.num_steps
        before, problem = self._batches.room.capacities, ""
        with self._group.exchanging("recording larger steps", *divmod(at, num_steps)):
            steps = dict.fromkeys(counted)
            own = self._batches.measured(Position(*divmod(step, num_steps)) for step in steps)
            larger = _joined_capacities(own, self._batches, self._group)
            self._wait()
            try:
                self._resize(larger)
            except RuntimeError as error:  # not kept: it holds what was allocated so far
                problem = str(error).partition("\n")[0].rstrip(".") or type(error).__name__
            problems = [text.decode() for text in self._group.gather_bytes(problem.encode()) if text]
            if problems:
                self._wait()
                self._resize(before)
        self._exceeded.since = at
        if problems:
            self._exceeded.since = max(at + self._exceeded.window, (at // num_steps + 1) * num_steps)
        if self._group.rank == 0:
            last = self._exceeded.window * self._group.world_size
            line = f"{len(counted)} of the last {last} batches exceeded the recorded shapes"
            self._say(
                f"{line}, and larger steps could not be recorded: {problems[0]}. Batches that exceed the "
                "shapes are computed operation by operation, which is slower; use smaller batches or fewer "
                "neighbors"
                if problems
                else f"{line}: the steps are recorded anew with larger shapes"
            )

    def _resize(self, capacities: Capacities) -> None:
        """Record the steps anew with buffers of these capacities. RuntimeError if that fails."""
        self._recorded = None  # its memory is free for the new buffers
        self._batches = self._batches.resized(capacities)
        self._record()

    def _wait(self) -> None:
        """Wait for the work of the buffers."""
        room = self._batches.room
        for stream in (room.streams.current(), room.stream):
            wait_for(room.streams.record(stream), self._group)

    def _inputs(self, loop: StaticLoop, epoch: int, noted: deque[StepInput]) -> Generator[StepInput]:
        """Yield the inputs of the steps with their dropout keys, and record them."""
        seed, rank = self._settings.seed, self._group.rank
        with closing(loop.inputs()) as inputs:
            for step, given in zip(loop.steps, inputs, strict=True):
                noted.append(given)
                yield replace(given, dropout_key=dropout_seed(seed, epoch, step, rank))

    def _exchange(self, loss: Tensor, seeds: int) -> None:
        """Average the gradients over the ranks and clip them; keep the sum of this rank's losses."""
        assert self._recorded is not None, "it has computed the loss"
        self._recorded[1].average()
        # A rank's loss is weighted by the number of ranks per seed of the step.
        torch.mul(loss, seeds / self._group.world_size, out=self._loss)
        limit = self._settings.optimizer.clip_norm
        if limit is not None:
            gradients = self._steps.gradients
            clip_gradients(gradients, square_sum(gradients), limit)


def _joined_capacities(own: Capacities, batches: StaticBatches, group: Group) -> Capacities:
    """Return the room for the batches of all ranks. Collective."""
    edge_types = batches.room.sampler.neighbors.graph.schema.edge_types
    found = map(json.loads, group.gather_bytes(json.dumps(own.state()).encode()))
    return reduce(Capacities.joined, [Capacities.from_state(state, edge_types) for state in found])


def recorded_steps(
    model: nn.Module,
    task: Task,
    batches: StaticBatches,
    settings: TrainerSettings,
    group: Group,
    saved: Mapping[str, object],
    say: Callable[[str], None],
) -> RecordedSteps:
    """Record the steps of a model, with shapes for the batches of all ranks. Collective.

    Unsupported, with the reason, if that fails on this rank.
    """
    own = batches.room.capacities
    # Equal on all ranks, because a checkpoint has the capacities of rank 0.
    capacities = _joined_capacities(own, batches, group)
    try:
        batches = batches if capacities == own else batches.resized(capacities)
        with _buffers_unchanged(model):
            return RecordedSteps(model, task, batches, settings, group, saved, say)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # an operation that synchronizes with the device cannot be recorded
        raise Unsupported(f"recording the step failed: {str(error).splitlines()[0]}") from error


@contextmanager
def _buffers_unchanged(model: nn.Module) -> Iterator[None]:
    """Restore buffers that the block changes; then Unsupported, which names them.

    Recording runs the model, on padded batches, and so does each recorded step.
    """
    before = {name: buffer.to("cpu", copy=True) for name, buffer in dense_buffers(model).items()}
    try:
        yield
    finally:
        changed = restore_buffers(model, before)
    if changed:
        raise Unsupported(
            f"the forward pass changes buffers of the model ({', '.join(changed[:4])}), and recorded batches "
            "are padded"
        )
