"""Training loop with checkpoints and metrics, on one process or several ranks.

Ctrl-C and SIGTERM do not interrupt an update of the weights.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from khop.arguments import path_of
from khop.distributed.processes.group import check_equal_settings, clock_offset, this_group
from khop.errors import PeerLost, Terminated
from khop.kernels.linear_choice import CHOICES
from khop.schema import NodeType
from khop.training import traffic
from khop.training.checkpoint import restore_model, restore_optimizer, shared_checkpoint
from khop.training.chosen_steps import chosen_steps
from khop.training.evaluations import CHOSEN_BY, EvaluationPlan, best_name, best_record, named_scores
from khop.training.gradients import broadcast
from khop.training.linear_setup import linear_ways
from khop.training.optimizer_settings import ModelOptimizer, set_next
from khop.training.run_log import EPOCHS, Record
from khop.training.run_output import LAST, DeviceLoss, DeviceValues, RunOutput, StepLog
from khop.training.settings import Launches, TrainerSettings, fixed_settings
from khop.training.start import start
from khop.training.step_clock import (
    STAGES,
    GatheredStep,
    Observer,
    RankStep,
    StepClock,
    TimedStep,
    Unwatched,
    on_its_own,
    seconds_by_stage,
)
from khop.training.steps import (
    BatchLoader,
    ComputedStep,
    EagerSteps,
    Steps,
    compare_ranks,
    notice_drawn_relations,
)
from khop.training.tasks import Task, score_name
from khop.training.trainer_state import StepBuffers, TrainerState, trainer_state_of

_HELD = (signal.SIGINT, signal.SIGTERM)
_LONG_S = 5.0  # before longer evaluations the state is saved, as ranks are killed seconds after a signal
_NO_SCORES = ("epoch", "step", EPOCHS, "seconds")  # in records of evaluations


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Defer Ctrl-C and SIGTERM to the end of the block, so that the block runs completely or not at all.

    Outside the main thread, this does nothing, because Python does not deliver signals there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[tuple[int, FrameType | None]] = []
    before = {number: signal.signal(number, lambda *came: held.append(came)) for number in _HELD}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for came, frame in held[:1]:
        handler = before[signal.Signals(came)]
        if callable(handler):
            handler(came, frame)
        elif handler is signal.SIG_DFL:
            signal.raise_signal(came)


@contextmanager
def interrupts_noted() -> Iterator[list[int]]:
    """Record the first Ctrl-C or SIGTERM of the block in the list, without interrupting the block.

    A second signal is passed to the previous handler. Outside the main thread, there are no signals.
    """
    noted: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield noted
        return

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    before = {number: signal.signal(number, note) for number in _HELD}
    try:
        yield noted
    finally:
        restore()


@contextmanager
def terminations_raised() -> Iterator[None]:
    """Make SIGTERM raise Terminated in the block instead of ending the process at once.

    An existing handler is kept.
    """
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        yield
        return

    def terminate(number: int, frame: FrameType | None) -> None:
        raise Terminated

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@dataclass(frozen=True)
class TrainingResult:
    """Result of a training run."""

    best_epoch: int
    best_score: float
    best: Record  # of the best evaluation: one of `records` or `evaluations`
    records: list[Record]  # one per epoch, as in metrics.jsonl, with those before a resume
    evaluations: list[Record]  # within epochs, as in steps.jsonl, with those before a resume
    seconds: float  # duration of this call


class Trainer:
    """Trains a model and its `NodeEmbedding` (with RowAdam); saves checkpoints in `out`/checkpoints.

    Checkpoints contain the best and the last state. Runs with equal settings and the same number of compute
    threads are bit-identical, for any number of loader threads, because dropout is seeded in every step.
    `fit` restores torch's global generator when it ends.

    With several ranks, the trainer is collective: every rank creates it with the same arguments and calls
    it. The ranks share batches and gradients, losses are for the global batch, and only rank 0 writes.

    Args:
        model: Module whose `model(batch)` returns the outputs for the task.
        task: Task, such as `khop.NodeClassification`.
        loader: Loader of the training batches.
        evaluate: Function that returns scores by name, the same on every rank; "val" selects the best
            evaluation.
        settings: Settings of the run.
        out: Folder of checkpoints and metrics.jsonl.
        observer: Receives the events of the run; default None.
        before_epoch: Function called with the epoch number before its first batch is made, but not when a
            run resumes within an epoch: store its results, such as a table of hard negatives, in buffers
            of the model. Default None.
    Raises:
        ValueError: The model has no parameters to train, or the optimizer does not accept them.
    Example:
        >>> y = torch.arange(40) % 2
        >>> columns, splits = {"x": torch.eye(2)[y], "y": y}, {"train": range(20), "val": range(20, 40)}
        >>> nodes = {"item": khop.NodeTable(columns=columns, splits=splits, num_classes={"y": 2})}
        >>> edges = {"item to item": khop.EdgeTable(torch.arange(40), torch.arange(40))}
        >>> graph = khop.open_graph(khop.write_graph(tmp / "graph", nodes, edges))
        >>> model = khop.models.SAGE.for_graph(graph, hidden=8, layers=1)
        >>> task = khop.NodeClassification("item", "y")
        >>> sampler, seeds = khop.NeighborSampler(graph, [5]), graph.split("train")
        >>> loader = khop.Loader(sampler, seeds, batch_size=10, columns=["x"], seed_columns=["y"])
        >>> evaluate = lambda: {"val": khop.evaluate(model, graph, split="val")}
        >>> settings = khop.TrainerSettings(epochs=2)
        >>> trainer = khop.Trainer(model, task, loader, evaluate, settings, out=tmp / "run")
        >>> len(trainer.fit().records)
        2
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        loader: BatchLoader,
        evaluate: Callable[[], Mapping[str, float]],
        settings: TrainerSettings,
        out: Path,
        observer: Observer | None = None,
        before_epoch: Callable[[int], None] | None = None,
    ) -> None:
        dtype = torch.float64 if settings.precision == "float64" else torch.float32
        self.model = model.to(settings.device, dtype)
        self.task = task
        self.loader = loader
        self.evaluate = evaluate
        self.settings = settings
        self.observer = observer or Unwatched()
        self._before_epoch = before_epoch or (lambda epoch: None)
        self.state = TrainerState(facts=settings.facts, settings=fixed_settings(settings))
        self.optimizer = ModelOptimizer(
            self.model, settings.learning_rate, settings.weight_decay, settings.optimizer
        )
        self._plan = EvaluationPlan.of(settings, len(loader))
        self._schedules = [
            settings.schedule.over(part, self._plan.last, lambda: self.state.plateau_scale)
            for part in self.optimizer.parts
        ]
        self._group = this_group()
        self._output = RunOutput(
            out, settings.checkpoints, self.model, self.optimizer, self._group, self.observer.warned
        )
        self._seconds: dict[str, float] = {}
        self._clock = StepClock()
        self._clock_offset = 0.0  # offset to rank 0's clock
        self._interrupts: list[int] = []  # signals recorded on this rank
        last = self._output.folder / LAST
        self._log = StepLog(self._output.writer, self.observer, last, self._group, self._logged)
        self._counts: Sequence[str] | None = None  # names that ranks count; agreed in the first update
        self._evaluating_s: float | None = None  # of the last evaluation, on the slowest rank
        self._steps: Steps | None = None  # created when training begins
        self._buffers = StepBuffers(self.model)

    def resume(self) -> None:
        """Load checkpoints/last; `fit` then continues with the next batch.

        Rank 0 reads the checkpoint and broadcasts it. A damaged checkpoint is reported to the observer,
        and the previous one is used. Nothing on disk changes before `fit`.

        Raises:
            ValueError: The run was started with other facts, seeds or settings that determine its updates:
                learning rate, weight decay, schedule (unless it is constant, also the numbers of epochs and
                steps), optimizer, precision, seed.
        """
        compare_ranks(self.loader)  # before its seeds are compared with those of the checkpoint
        with self._group.exchanging("reading the checkpoint"):
            checkpoint, records = self._output.read()
        facts, fixed = self.settings.facts, fixed_settings(self.settings)
        state = trainer_state_of(checkpoint.training, facts, fixed, checkpoint.folder)
        state.check(len(self.loader), len(records), checkpoint.folder)
        if state.loader:
            self.loader.load_state_dict(state.loader)
        restore_model(self.model, checkpoint)
        restore_optimizer(self.model, self.optimizer, checkpoint)
        for schedule in self._schedules if state.schedule else ():
            schedule.load_state_dict(dict(state.schedule))
        self.state = state
        self._output.records, self._output.source = records, checkpoint.folder
        if not self._is_over():
            self.state = replace(state, is_finished=False)
            self._output.records = records[: state.epoch]  # without the record of an epoch that ended early

    def start_from(
        self,
        checkpoint: str | os.PathLike[str],
        nodes: Mapping[NodeType, Tensor] | None = None,
        *,
        optimizer: bool = False,
    ) -> None:
        """Load the weights of another run before `fit`, which then starts a new run with them. Collective.

        Weights are loaded by name. A new node gets the row `unknown` of the checkpoint's embeddings, or keeps
        its initial embedding if the model has no such row. Rank 0 reads the checkpoint and broadcasts it.

        Args:
            checkpoint: Folder of the checkpoint, such as `runs/a/checkpoints/best`.
            nodes: For each node type with embeddings, the node of the checkpoint's graph for each node of the
                graph, int64 (nodes), -1 for new nodes; `khop.open_ids` finds them by id. Default: nodes have
                the same numbers, and additional ones are new, as after `khop append`.
            optimizer: Also load the state of the optimizer, which must be of the same kind; its learning rate
                and other settings are those of this run. Default False.
        Raises:
            ValueError: Names or shapes of weights differ, or the optimizer is another one.
        """
        folder = path_of("checkpoint", checkpoint)
        with self._group.exchanging("reading the checkpoint"):
            found = shared_checkpoint(folder, self._group, self.observer.warned)
        start(self.model, self.optimizer if optimizer else None, found, nodes or {})

    def fit(self) -> TrainingResult:
        """Train until the last epoch or step, or until `patience` or `target` ends the training.

        On Ctrl-C, SIGTERM and a lost rank, the trainer saves the state after the last update in
        checkpoints/last, and the exception propagates. Several ranks with GPUs, or with sharded embeddings,
        end after the same update or evaluation. If they lose a rank, they save nothing: the last checkpoint
        remains. Buffers of the model of more than 1 MiB keep the changes of a batch that was not finished.

        Returns:
            Best epoch, best score and the records of all epochs.
        Raises:
            ValueError: The loss is NaN or infinite.
        """
        begun = time.perf_counter()
        self._begin(self.settings.launches)
        stops_together = self._stops_together
        try:
            noting = interrupts_noted() if stops_together else nullcontext(self._interrupts)
            with (
                terminations_raised(),
                _own_generator(self.settings.device),
                noting as self._interrupts,
            ):
                self.observer.started(self._plan.epochs, len(self.loader))
                while not self._is_over():
                    self._train_epoch()
        except (KeyboardInterrupt, PeerLost):
            with interrupts_held():
                try:
                    if not stops_together:  # otherwise, all ranks have saved it, or they are lost
                        self._buffers.restore()
                        self.state = self._log.settled(self.state)
                        self._save(LAST)
                finally:
                    self._output.close()
            raise
        except BaseException:
            self._output.close()
            raise
        with self._group.exchanging("ending"):
            self._output.close()
            self._group.meet("ending")  # all ranks fail if rank 0 could not write its last data
        state, records = self.state, self._output.records
        assert state.best_score is not None, "the last state is always evaluated"
        best = best_record(records, state, self.task.metric)
        seconds = time.perf_counter() - begun
        evaluations = list(state.evaluations)
        return TrainingResult(state.best_epoch, state.best_score, best, records, evaluations, seconds)

    @property
    def _stops_together(self) -> bool:
        """True if all ranks must end after the same update.

        A checkpoint of sharded embeddings needs all ranks, and a GPU would wait forever for a collective that
        another rank does not launch.
        """
        assert self._steps is not None, "_begin comes first"
        is_on_devices = self._group.world_size > 1 and self._steps.streams is not None
        return self._output.is_sharded or is_on_devices

    def rehearse(self, steps: int) -> int:
        """Run some updates as `fit` does, without evaluation; return the number of updates done.

        It is for measurements, and continues into later epochs if needed. The first Ctrl-C ends it early,
        after the same update on all ranks; a second one ends it at once. On a GPU, each stage ends with a
        synchronization, so that stages are measured separately; steps are not recorded as CUDA graphs.

        Args:
            steps: Maximum number of updates.
        """
        if steps < 1:
            raise ValueError(f"steps {steps}: must be at least 1")
        self._begin("single")
        done, is_stopped = 0, False
        is_on_gpu = self.settings.device_type == "cuda"
        self._clock = StepClock(torch.cuda.synchronize if is_on_gpu else on_its_own)
        try:
            with _own_generator(self.settings.device), interrupts_noted() as self._interrupts:
                self.observer.started(-(-steps // len(self.loader)), len(self.loader))
                while done < steps and not is_stopped:
                    self._seconds = dict.fromkeys(STAGES, 0.0)
                    with closing(self._computed()) as computed:
                        for step in islice(computed, steps - done):
                            is_stopped = self._update(step) != 0
                            done += 1
                            if is_stopped:
                                break
                    is_stopped |= self._settle() != 0
                    if self.state.step == len(self.loader):
                        self.state = self.state.ended()
        finally:
            self._output.close()
        return done

    def _begin(self, launches: Launches) -> None:
        """Compare the ranks' settings, prepare the steps, and truncate the logs to the current state."""
        settings, state = self.settings, self.state
        loader = self.loader.state_dict().get("fingerprint", "")
        own = {
            "epochs": str(settings.epochs),
            "evaluate_every": str(settings.evaluate_every),
            "patience": str(settings.patience),
            "max_steps": str(settings.max_steps),
            "target": str(settings.target),
            "way to compute layers": CHOICES.setting,
            "launches": launches,
        }
        # With the facts, because another graph explains other seeds.
        check_equal_settings(self._group, {**fixed_settings(settings), **own, **settings.facts})
        compare_ranks(self.loader)  # its errors about seeds are more detailed
        check_equal_settings(self._group, {"seeds, batch size and order": json.dumps(loader, sort_keys=True)})
        if self._group.rank == 0:
            notice_drawn_relations(self.model, self.loader)
        self._output.begin(state, len(self.loader))
        linear = linear_ways(settings, self.state.linear, self.observer.warned)
        with self._group.exchanging("sharing the weights"):
            made = (self.model, self.task, self.loader, settings)
            self._steps = chosen_steps(
                *made,
                launches if launches != "auto" or settings.device_type == "cuda" else "single",
                state.shapes,
                lambda: EagerSteps(*made, self.optimizer, self._group, self._output.folder / LAST),
                self.observer.warned,
            )
        self.state = replace(self.state, linear=linear, shapes=self._steps.state())
        self._clock_offset = clock_offset(self._group)

    def _train_epoch(self) -> None:
        self._seconds = dict.fromkeys((*STAGES, "evaluating"), 0.0)
        begun = time.monotonic()
        if self.state.step == 0:
            self._share_buffers()
            self._before_epoch(self.state.epoch)
        with closing(self._computed()) as steps:
            while not self._ends_within() and (step := next(steps, None)) is not None:
                signal_number = self._update(step)
                del step  # and its batch, before the next one
                self._stop(signal_number)
        self._stop(self._settle())
        scores: Mapping[str, Any] = {}
        signal_number = 0
        if self.state.is_evaluated:  # the run ends within the epoch
            scores = {name: score for name, score in self._latest().items() if name not in _NO_SCORES}
        elif self._plan.is_due(self.state):
            scores, signal_number = self._evaluated()
        self._seconds["total"] = time.monotonic() - begun
        self._end_epoch(scores)
        _raise_for(signal_number)

    def _ends_within(self) -> bool:
        """Evaluate the model if it is due within the epoch; return True if the run ends there."""
        state = self.state
        if state.step in (0, len(self.loader)) or not self._plan.is_due(state):
            return False
        if not state.is_evaluated:
            self._stop(self._settle())
            before = self._seconds["evaluating"]
            scores, signal_number = self._evaluated()
            self._end_evaluation(scores, self._seconds["evaluating"] - before)
            self._stop(signal_number)
            self.model.train()
            self._clock.start()
        return self._is_over()

    def _evaluated(self) -> tuple[dict[str, float], int]:
        """Evaluate the model; return its scores by their names in records, and the signal to end, or 0.

        Ranks that must end together do so after the evaluation. They may be killed before, if it is long:
        then the state is saved first.
        """
        begun, (model, state) = time.perf_counter(), (self.model, self.state)
        stops_together = self._stops_together
        if stops_together and (self._evaluating_s is None or self._evaluating_s > _LONG_S):
            with interrupts_held():
                self._save(LAST)
                self._log.saved()
        self._share_buffers()
        checkpoint = self._output.folder / LAST
        scores = named_scores(self.evaluate, model, self.task.metric, state, self.settings, checkpoint)
        self._buffers.keep()
        seconds = time.perf_counter() - begun
        self._seconds["evaluating"] += seconds
        if not stops_together:
            return scores, 0
        with self._group.exchanging("ending the evaluation"):
            own = torch.tensor([seconds, max(self._interrupts, default=0)], dtype=torch.float64)
            self._evaluating_s, signal_number = self._group.gather(own).amax(dim=0).tolist()
        return scores, int(signal_number)

    def _share_buffers(self) -> None:
        """Take the buffers of rank 0, such as statistics of BatchNorm: a checkpoint has these. Collective."""
        buffers = [buffer for buffer in self.model.buffers() if buffer.is_floating_point()]
        if buffers:
            with self._group.exchanging("sharing buffers"):
                broadcast(self._group, buffers)

    def _end_evaluation(self, scores: Mapping[str, float], seconds: float) -> None:
        """Log an evaluation within the epoch, and save the state if it is among the best."""
        state = self.state
        record: Record = {
            "epoch": state.epoch,
            "step": state.step - 1,
            EPOCHS: self._plan.num_epochs(state),
            **scores,
            "seconds": {"evaluating": round(seconds, 4)},
        }
        with interrupts_held():
            best = self._best_name(record)
            self._count(scores)
            self.state = replace(self.state, evaluations=(*state.evaluations, record))
            self._output.evaluated(record)
            if best:
                self._save(*best, LAST)
                self._log.saved()
        self.observer.evaluated(record)

    def _count(self, scores: Mapping[str, Any]) -> None:
        """Add the scores of an evaluation to the state, and adapt the learning rate."""
        metric, plateau = self.task.metric, self.settings.schedule.plateau
        self.state = self.state.scored(scores[score_name(CHOSEN_BY, metric)], metric, plateau)
        for schedule in self._schedules if plateau else ():
            set_next(schedule)

    def _best_name(self, record: Record) -> list[str]:
        earlier = (*self._output.records, *self.state.evaluations)
        return best_name(self.task.metric, earlier, record, self.settings.checkpoints.best)

    def _latest(self) -> Record:
        """Return the latest record of an evaluation within the epoch, or of an epoch."""
        records = self.state.evaluations if self.state.step else self._output.records
        return records[-1] if records else {}

    def _is_over(self) -> bool:
        return self._plan.is_over(self.state, self.settings, self._latest())

    def _settle(self) -> int:
        """Wait for the values of all updates of the epoch; return the signal to end after it, or 0."""
        self.state = self._log.settled(self.state)
        return self._log.requests(is_settled=True)[0]

    def _stop(self, signal_number: int) -> None:
        """Save the state and raise the exception of a signal that all ranks know, unless it is 0."""
        if signal_number:
            self.state = self._log.settled(self.state)
            self._save(LAST)
            _raise_for(signal_number)

    def _computed(self) -> Generator[ComputedStep]:
        """Yield the remaining steps of the epoch."""
        state = self.state
        self.model.train()
        if state.step == len(self.loader):
            return
        assert self._steps is not None, "_begin comes first"
        self._group.at("waiting for its batch", state.epoch, state.step)
        self._buffers.keep()
        self._clock.start()
        for step in self._steps.epoch(state.epoch, self._clock):
            yield step
            self._group.at("waiting for its batch", state.epoch, step.batch.step + 1)
            del step  # and its batch, before the next one

    def _update(self, computed: ComputedStep) -> int:
        """Do one update on all ranks; return the signal that one of them has recorded, or 0."""
        before, group, clock, batch = self.state, self._group, self._clock, computed.batch
        loss = computed.loss_sum
        ready_at = (computed.ready_at or 0.0) - self._clock_offset
        known = 0.0 if isinstance(loss, DeviceLoss) else loss
        signal_number = max(self._interrupts, default=0)
        own = RankStep(known, computed.seeds, signal_number, ready_at, self._output.is_due(updates=1))
        # Before the update, so that no rank updates if this exchange fails on the host.
        with group.exchanging("exchanging losses", before.epoch, before.step):
            counts = self._counted(batch.traffic)
            values = own.values(clock.unreported(), counts)
            late = loss.with_values(group, values) if isinstance(loss, DeviceLoss) else None
            step = GatheredStep(group.gather(values) if late is None else values[None], counts)
        clock.lap("communicating", "losses")
        with interrupts_held():
            self.optimizer.step()
            self._buffers.keep()
            for schedule in self._schedules:
                schedule.step()
            clock.lap("computing", "update")
            signal_number = self._advance(step, late)
        clock.lap("saving")
        spans = clock.finish()
        for stage, seconds in seconds_by_stage(spans).items():
            self._seconds[stage] += seconds
        self.observer.timed(TimedStep(batch, spans))
        clock.start()
        return signal_number

    def _counted(self, counts: Mapping[str, float]) -> Mapping[str, float]:
        """Return the counts of a batch by the names of all ranks, 0 for those of other ranks alone.

        A rank may cache rows while another has no room for it. Collective in the first update.
        """
        group = self._group
        if group.world_size == 1:
            return counts
        if self._counts is None:
            named = group.gather_bytes(json.dumps(list(counts)).encode())
            self._counts = sorted({name for of_rank in named for name in json.loads(of_rank)})
        return {name: counts.get(name, 0) for name in self._counts}

    def _advance(self, step: GatheredStep, late: DeviceValues | None) -> int:
        """Advance the state by one update; return the signal to end after it, or 0. See StepLog.add."""
        before = self.state
        ended = replace(
            before,
            step=before.step + 1,
            loader=self.loader.state_dict(),
            schedule=self._schedules[0].state_dict(),
        )
        self.state = ended  # the update is done, even if logging fails
        self.state = self._log.add(ended, step, late)
        signal_number, wants_checkpoint = self._log.requests()
        if wants_checkpoint if self._output.is_sharded else self._output.is_due():
            self.state = self._log.settled(self.state)
            self._save(LAST)
            self._log.saved()
        return signal_number

    def _logged(self, epoch: int, step: int, counts: Mapping[str, Sequence[float]]) -> None:
        assert self._steps is not None, "they computed the update"
        self._steps.logged(epoch, step, counts)

    def _save(self, *names: str) -> None:
        """Write checkpoints of the state, which has all values."""
        assert self._steps is not None, "_begin comes first"
        self.state = replace(self.state, shapes=self._steps.state())
        self._output.save(self.state, *names)

    def _end_epoch(self, scores: Mapping[str, Any]) -> None:
        """Log the epoch, with the scores of an evaluation if there was one, and save the state."""
        state, plan = self.state, self._plan
        is_whole = state.step == len(self.loader)
        record: Record = {
            "epoch": state.epoch,
            "step": state.updates(len(self.loader)),
            **({} if is_whole else {EPOCHS: plan.num_epochs(state)}),
            "loss": state.loss_sum / state.seeds,
            **scores,
            **traffic.epoch_record(state.traffic),
            "seconds": {stage: round(seconds, 4) for stage, seconds in self._seconds.items()},
        }
        with interrupts_held():
            best = self._best_name(record) if is_whole else []
            if is_whole and scores:
                self._count(scores)
            self._output.end_epoch(record)
            self.state = self.state.ended() if is_whole else self.state
            is_finished = plan.is_finished(self.state, self.settings, record)
            self.state = replace(
                self.state, is_finished=is_finished and self.state.epoch < self.settings.epochs
            )
            self._save(*best, LAST)
        self.observer.epoch_ended(record)


def _raise_for(signal_number: int) -> None:
    """Raise the exception of a signal, unless it is 0."""
    if signal_number:
        raise Terminated if signal_number == signal.SIGTERM else KeyboardInterrupt


def _own_generator(device: str) -> AbstractContextManager[None]:
    """Restore torch's global generator after the block."""
    place = torch.device(device)
    return torch.random.fork_rng([] if place.type == "cpu" else [place])
