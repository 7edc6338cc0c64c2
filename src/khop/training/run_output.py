"""Output of a training run: two logs, and checkpoints written by a background thread.

Values of logged steps may still be in flight from the device.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from khop.distributed.processes.group import Group
from khop.errors import is_out_of_memory
from khop.graph.remote import publish
from khop.loading.device.streams import Event, Streams
from khop.models.node_embedding import sharded_rows
from khop.training import traffic
from khop.training.checkpoint import Checkpoint, StateCopy, shared_checkpoint
from khop.training.optimizer_settings import ModelOptimizer
from khop.training.replace_folder import make_youngest, pushed_folders, read_state, remove_folder, renumber
from khop.training.run_log import Record, RunLog
from khop.training.settings import CheckpointPolicy
from khop.training.step_clock import GatheredStep, Observer
from khop.training.trainer_state import TrainerState, check_loss, check_weights

BEST, LAST = "best", "last"
FLUSH_S = 2.0  # longest time that lines of steps stay in memory


class CheckpointWriter:
    """Writer of a run's logs and checkpoints.

    A thread writes the checkpoints, one at a time. If the disk or the memory refuses a write, the writer
    reports it to `warn` and tries again with the next checkpoint; any other error is raised there. `close`
    raises if data are still unwritten then.
    """

    def __init__(self, out: Path, policy: CheckpointPolicy, warn: Callable[[str], None]) -> None:
        self.epochs = RunLog(out / "metrics.jsonl")
        self.steps = RunLog(out / "steps.jsonl")
        self.folder = out / "checkpoints"
        self._policy = policy
        self._warn = warn
        self._best: list[tuple[int, StateCopy]] = []  # unwritten, in order, each with its place by then
        self._last: StateCopy | None = None  # unwritten
        self._writer: threading.Thread | None = None
        self._problem: Exception | None = None
        self._unpublished: Exception | None = None  # of the object store that the run folder is in
        self._steps_since = 0
        self._saved_at = self._flushed_at = time.monotonic()

    def log_step(self, record: Record) -> None:
        """Add a line to steps.jsonl; it reaches the disk with the next flush."""
        self.steps.hold(record)
        self._steps_since += 1
        if time.monotonic() - self._flushed_at > FLUSH_S:
            self._flush()

    def log_epoch(self, record: Record) -> None:
        """Add a line to metrics.jsonl, and flush both logs."""
        self.epochs.hold(record)
        self._flush()

    def is_due(self, updates: int = 0) -> bool:
        """Return True if a checkpoint is due after more updates, and the previous one is written."""
        policy = self._policy
        by_steps = policy.steps is not None and self._steps_since + updates >= policy.steps
        elapsed = time.monotonic() - self._saved_at
        by_clock = policy.minutes is not None and elapsed >= 60 * policy.minutes
        is_writing = self._writer is not None and self._writer.is_alive()
        return (by_steps or by_clock) and not is_writing

    def save(self, snapshots: dict[str, StateCopy]) -> None:
        """Write checkpoints by name in the background, after earlier checkpoints and after the logs."""
        self._wait()
        for name, snapshot in snapshots.items():
            if name == LAST:
                self._last = snapshot
            else:
                self._add_best(int(name.removeprefix(BEST).removeprefix("-") or 0), snapshot)
        self._steps_since, self._saved_at = 0, time.monotonic()
        # Flush the logs first, because resume drops surplus lines, but cannot recreate missing ones.
        if self._flush():
            self._writer = threading.Thread(target=self._write, name="khop-checkpoint")
            self._writer.start()

    def close(self) -> None:
        """Write all remaining data to disk; OSError if a write still fails."""
        try:
            self._wait()
        finally:
            self.epochs.flush()
            self.steps.flush()
        if self._best or self._last is not None:
            self._write()
        if self._problem is not None:
            raise self._problem

    def log_evaluation(self, record: Record) -> None:
        """Add the line of an evaluation within an epoch to steps.jsonl, and flush both logs."""
        self.steps.hold(record)
        self._flush()

    def begin(self, records: Sequence[Record], state: TrainerState, steps: int, source: Path | None) -> None:
        """Set the logs to the state of a run with `steps` updates per epoch.

        `source` is the checkpoint from which the run resumes. Newer checkpoints are damaged, and are renamed.
        Of several best checkpoints, those of later evaluations are removed, because these are repeated.
        """
        self.epochs.path.parent.mkdir(parents=True, exist_ok=True)
        if source is not None:
            make_youngest(self.folder / LAST, source)
        if self._policy.best > 1:
            self._drop_best_after(state)
        if absent := self.epochs.replace(records):
            self._warn(
                f"{self.epochs.path}: {absent} lines were damaged or lost, and are restored from the "
                "checkpoint"
            )
        updates = state.updates(steps)
        if absent := self.steps.keep(updates, steps, state.evaluations):
            self._warn(f"{self.steps.path}: {absent} of {updates} lines are damaged or lost, and left out")

    def _add_best(self, place: int, snapshot: StateCopy) -> None:
        """Add one of the best checkpoints, and drop unwritten ones that later ones have displaced."""
        self._best.append((place, snapshot))
        places = [place for place, _ in self._best]
        self._best = [
            self._best[number]
            for number, place in enumerate(places)
            if _place_after(place, places[number + 1 :]) < self._policy.best
        ]

    def _drop_best_after(self, state: TrainerState) -> None:
        """Remove the best checkpoints of evaluations after a state, and number the others from 0."""
        folder = self.folder / BEST
        kept: list[Path] = []
        for found in pushed_folders(folder):
            try:
                training = read_state(found)["training"]
            except ValueError:  # damaged
                kept.append(found)
                continue
            evaluations = training.get("evaluations", ())
            is_before = training.get("epoch", 0) <= state.epoch and len(evaluations) <= len(state.evaluations)
            (kept if is_before else []).append(found)
        renumber(folder, kept[: self._policy.best])

    def _write(self) -> None:
        self._problem = None
        best, last, kept = self.folder / BEST, self.folder / LAST, self._policy.best
        try:
            while self._best:
                place, snapshot = self._best[0]
                # One more than asked for until a run can resume behind this evaluation.
                snapshot.write(best, kept + 1 if kept > 1 else 1, place)
                del self._best[0]
        except Exception as error:  # raised by `_wait`, in the thread that trains
            self._problem = error
        try:
            if self._last is not None:
                self._last.write(last, self._policy.keep)
                self._last = None
                if kept > 1:
                    remove_folder(best.with_name(f"{BEST}-{kept}"))
        except Exception as error:
            self._problem = error
        self._unpublished = None
        try:
            publish(self.folder.parent)
        except Exception as error:  # the next checkpoint, or the command at its end, tries again
            self._unpublished = error

    def _wait(self) -> None:
        if self._writer is not None:
            self._writer.join()
            self._writer = None
            if self._problem is not None:
                if not (isinstance(self._problem, OSError) or is_out_of_memory(self._problem)):
                    raise self._problem
                self._warn(f"{_sentence(self._problem)}; the run continues")
            if self._unpublished is not None:
                self._warn(f"{self._unpublished}; the run continues")

    def _flush(self) -> bool:
        """Flush the logs to disk; return True on success."""
        self._flushed_at = time.monotonic()
        try:
            self.epochs.flush()
            self.steps.flush()
        except OSError as error:
            self._warn(f"{_sentence(error)}; the run continues")
            return False
        return True


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}"
    return "the checkpoint could not be written, because memory is exhausted"


def _place_after(place: int, later: Iterable[int]) -> int:
    """Return the place of a checkpoint after later ones have taken their places."""
    for other in later:
        place += other <= place
    return place


class RunOutput:
    """Logs and checkpoints of a run. Rank 0 writes; all ranks send it their shards of embeddings."""

    def __init__(
        self,
        out: Path,
        policy: CheckpointPolicy,
        model: nn.Module,
        optimizer: ModelOptimizer,
        group: Group,
        warn: Callable[[str], None],
    ) -> None:
        self.folder = out / "checkpoints"
        self.is_sharded = bool(sharded_rows(model))  # a checkpoint needs all ranks
        self.records: list[Record] = []  # of the finished epochs
        self.source: Path | None = None  # the checkpoint from which training resumes
        self.writer = CheckpointWriter(out, policy, warn) if group.rank == 0 else None
        self._out = out
        self._model = model
        self._optimizer = optimizer
        self._group = group
        self._warn = warn

    def read(self) -> tuple[Checkpoint, list[Record]]:
        """Return checkpoints/last and the records of its epochs. Rank 0 reads and broadcasts them."""
        checkpoint = shared_checkpoint(self.folder / LAST, self._group, self._warn)
        return checkpoint, list(checkpoint.records)

    def begin(self, state: TrainerState, steps: int) -> None:
        """Truncate the logs to the state of a run with `steps` updates per epoch.

        ValueError if the folder has a run that is not resumed.
        """
        if self.writer is None:
            return
        if self.source is None and (self.writer.epochs.lines() or pushed_folders(self.folder / LAST)):
            raise ValueError(f"{self._out}: it already contains a run; resume it, or choose another folder")
        self.writer.begin(self.records, state, steps, self.source)

    def end_epoch(self, record: Record) -> None:
        """Add the record of an epoch."""
        self.records.append(record)
        if self.writer is not None:
            self.writer.log_epoch(record)

    def evaluated(self, record: Record) -> None:
        """Log the record of an evaluation within an epoch."""
        if self.writer is not None:
            self.writer.log_evaluation(record)

    def is_due(self, updates: int = 0) -> bool:
        """Return True on rank 0 if a checkpoint within the epoch is due after further updates."""
        return self.writer is not None and self.writer.is_due(updates)

    def save(self, state: TrainerState, *names: str) -> None:
        """Write checkpoints on rank 0; all ranks send it their shards of embeddings."""
        if self.writer is None and not self.is_sharded:
            return
        check_weights(self._model, state, self.folder / LAST)
        snapshot = StateCopy.of(self._model, self._optimizer, asdict(state), self.records)
        if self.writer is not None:
            self.writer.save(dict.fromkeys(names, snapshot))

    def close(self) -> None:
        """Write all remaining data; OSError if a write fails."""
        if self.writer is not None:
            self.writer.close()


@dataclass(frozen=True)
class DeviceLoss:
    """Sum of a rank's losses in an update, computed on a device."""

    sum: Tensor  # float64 (), written by the current stream
    streams: Streams
    behind: int  # updates after which it has been computed

    def with_values(self, group: Group, values: Tensor) -> DeviceValues:
        """Exchange the values of RankStep with this loss on the devices. Collective.

        The host does not wait with NCCL. With one rank, nothing is exchanged: only its loss is on the device.
        """
        own = self.sum.view(1)
        if group.world_size == 1:
            return DeviceValues(own[None], self.streams, self.behind)
        others = self.streams.copied(self.streams.pinned(values[1:]))
        return DeviceValues(group.gather(torch.cat([own, others])), self.streams, self.behind)


@dataclass(frozen=True)
class DeviceValues:
    """Values of an update that devices exchange."""

    first: Tensor  # float64 (ranks, n): the first columns of GatheredStep
    streams: Streams
    behind: int  # updates after which the device has computed them


@dataclass(frozen=True)
class _Entry:
    """An update with values that are not known yet."""

    epoch: int
    step: int
    own: GatheredStep  # values of this rank, without those of the device
    first: Tensor  # DeviceValues.first in host memory, once the device has passed the event
    copied: Event


class StepLog:
    """Writes a line for each update, and adds its values to the state.

    Values of a device are read a few updates later, when they have been computed. Until then, the sums in the
    state lack them; `settled` reads all. If an observer raises, the values of its update are added to the
    state that is settled next. `logged` gets the counts of all ranks in each update.
    """

    def __init__(
        self,
        writer: CheckpointWriter | None,
        observer: Observer,
        checkpoint: Path,
        group: Group,
        logged: Callable[[int, int, Mapping[str, Sequence[float]]], None] = lambda *step: None,
    ) -> None:
        self._writer, self._observer, self._group, self._logged = writer, observer, group, logged
        self._checkpoint = checkpoint  # named in errors
        self._pending: deque[_Entry] = deque()
        self._free: list[Tensor] = []
        self._unadded: list[GatheredStep] = []  # logged, in order
        self._unheeded: deque[GatheredStep] = deque()  # whose requests are not returned, in order
        self._behind = 0
        self._before_checkpoint = 0  # of the updates from the first unheeded one on

    def add(self, state: TrainerState, step: GatheredStep, late: DeviceValues | None = None) -> TrainerState:
        """Log the update that ended before `state`; return the state with all values known so far.

        Without `late`, `step` has the values of all ranks. Otherwise, `step` has the values of this rank, and
        the copy of `late` to the host is started.
        """
        position = (state.epoch, state.step - 1)
        if late is None:
            self._behind = 0
            self._log(*position, step)
            return self._added(state)
        streams, first = late.streams, late.first
        has_room = self._free and self._free[-1].shape == first.shape
        on_host = self._free.pop() if has_room else streams.pinned(first.new_zeros(first.shape, device="cpu"))
        on_host.copy_(first, non_blocking=True)
        copied = streams.record(streams.current())
        self._pending.append(_Entry(*position, step, on_host, copied))
        self._behind = late.behind
        return self._read(state, late.behind)

    def settled(self, state: TrainerState) -> TrainerState:
        """Wait for the values of all updates, and return the state with them."""
        return self._read(state, 0)

    def requests(self, *, is_settled: bool = False) -> tuple[int, bool]:
        """Return the signal that ranks have recorded, or 0, and True if one wants a checkpoint.

        All ranks get the requests of an update after the same update, whenever they have read its values: for
        values of a device, a few updates later, or when all ranks have settled the state.
        """
        behind = 0 if is_settled else self._behind
        signal_number, wants_checkpoint = 0, False
        while len(self._unheeded) + len(self._pending) > behind:
            step = self._unheeded.popleft()
            signal_number = max(signal_number, step.signal_number)
            wants_checkpoint |= step.wants_checkpoint and self._before_checkpoint == 0
            self._before_checkpoint = max(0, self._before_checkpoint - 1)
        return signal_number, wants_checkpoint

    def saved(self) -> None:
        """Ignore earlier requests for a checkpoint, because one has just been made."""
        self._before_checkpoint = len(self._unheeded) + len(self._pending)

    def _read(self, state: TrainerState, behind: int) -> TrainerState:
        while len(self._pending) > behind:
            entry = self._pending.popleft()
            wait_for(entry.copied, self._group)
            gathered = entry.own.with_first(entry.first)
            self._free.append(entry.first)
            check_loss(gathered.loss_sum, entry.epoch, entry.step, self._checkpoint)
            self._log(entry.epoch, entry.step, gathered)
        return self._added(state)

    def _log(self, epoch: int, step: int, gathered: GatheredStep) -> None:
        loss_sum, seeds = gathered.loss_sum, gathered.seeds
        self._unadded.append(gathered)
        self._unheeded.append(gathered)
        self._logged(epoch, step, gathered.traffic)
        loss = loss_sum / max(seeds, 1)
        if self._writer is not None:
            counts = traffic.step_record(gathered.seconds, gathered.traffic)
            self._writer.log_step({"epoch": epoch, "step": step, "loss": loss, "seeds": seeds, **counts})
        self._observer.stepped(epoch, step, loss)

    def _added(self, state: TrainerState) -> TrainerState:
        """Return the state with the values that are logged."""
        unadded, self._unadded = self._unadded, []
        for step in unadded:
            state = replace(
                state,
                loss_sum=state.loss_sum + step.loss_sum,
                seeds=state.seeds + step.seeds,
                traffic=traffic.summed(state.traffic, step.traffic),
            )
        return state


def wait_for(event: Event, group: Group) -> None:
    """Wait for work on a device unless it is done. PeerLost if it depends on a rank that is lost or late."""
    if group.world_size > 1:
        group.wait_until(event.query, "no response on the device")
    elif not event.query():
        event.synchronize()
