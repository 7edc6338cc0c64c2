"""The training loop: batches in, checkpoints and one line of metrics per epoch out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from khop.batch import Batch
from khop.draw import DrawKey, Purpose, mix64
from khop.training.checkpoint import load_checkpoint, restore_model, restore_optimizer, save_checkpoint
from khop.training.interrupts import interrupts_held
from khop.training.observer import Observer, Unwatched
from khop.training.placement import mover
from khop.training.run_log import Record, RunLog
from khop.training.settings import TrainerSettings
from khop.training.tasks import Task, score_name

STAGES = ("sampling", "gathering", "waiting", "computing", "evaluating")
CHOSEN_BY = "val"  # the split whose score decides which epoch is the best


class BatchLoader(Protocol):
    """What the trainer asks of a loader; khop.Loader is one."""

    def __len__(self) -> int:
        """Steps of an epoch."""
        ...

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """All batches of one epoch; of the epoch of a loaded state, those that remain."""
        ...

    def state_dict(self) -> dict[str, object]:
        """Where the consumer stands, as JSON values."""
        ...

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on from there; ValueError where the state is of other seeds."""
        ...


@dataclass(frozen=True)
class Standing:
    """Where training stands: what a checkpoint keeps beside the tensors."""

    epoch: int = 0  # of the next update
    step: int = 0  # of the next update
    loss_sum: float = 0.0  # of the epoch so far, over its seeds
    seeds: int = 0  # of the epoch so far
    best_score: float | None = None
    best_epoch: int = 0
    stale: int = 0  # evaluations since the best one
    loader: Mapping[str, object] = field(default_factory=dict)
    config_hash: str = ""

    def ended(self, score: float | None) -> Standing:
        """At the start of the next epoch, after this one's score if it was evaluated."""
        following = replace(self, epoch=self.epoch + 1, step=0, loss_sum=0.0, seeds=0)
        if score is None:
            return following
        if self.best_score is None or score > self.best_score:
            return replace(following, best_score=score, best_epoch=self.epoch, stale=0)
        return replace(following, stale=self.stale + 1)

    def is_over(self, settings: TrainerSettings) -> bool:
        """Whether there is no epoch left to train."""
        is_stale = settings.patience is not None and self.stale >= settings.patience
        return self.epoch >= settings.epochs or is_stale


@dataclass(frozen=True)
class TrainingResult:
    """How the training went."""

    best_epoch: int
    best_score: float
    records: list[Record]  # one per epoch, as in metrics.jsonl, those before a resume included
    seconds: float  # of this call


class Trainer:
    """Trains a model with Adam; the best and the last state are kept under `out`/checkpoints.

    Two runs with equal settings and equally many compute threads take the same course bit for bit, whatever
    the loader's threads: dropout is seeded anew for every step. Torch's global generator is as it was when
    `fit` ends.
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
    ) -> None:
        dtype = torch.float64 if settings.precision == "float64" else torch.float32
        self.model = model.to(settings.device, dtype)
        self.task = task
        self.loader = loader
        self.evaluate = evaluate
        self.settings = settings
        self.out = out
        self.observer = observer or Unwatched()
        self.optimizer = torch.optim.Adam(
            self.model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
        )
        self.standing = Standing(config_hash=settings.config_hash)
        self._log = RunLog(out / "metrics.jsonl")
        self._is_resumed = False
        self._seconds: dict[str, float] = {}

    def resume(self) -> None:
        """Take up where checkpoints/last stands; `fit` then goes on with the very next batch."""
        checkpoint = load_checkpoint(self._folder("last"))
        standing = _standing_of(checkpoint.training, self._folder("last"))
        if standing.loader:
            self.loader.load_state_dict(standing.loader)
        restore_model(self.model, checkpoint)
        restore_optimizer(self.model, self.optimizer, checkpoint)
        self.standing = standing
        self._is_resumed = True

    def fit(self) -> TrainingResult:
        """Train to the last epoch, or until `patience` evaluations brought nothing better.

        A loss that is no number is a ValueError. Ctrl-C writes checkpoints/last as the last update left
        everything, and goes on up.
        """
        begun = time.perf_counter()
        self.out.mkdir(parents=True, exist_ok=True)
        if not self._is_resumed and (self._log.records() or self._folder("last").exists()):
            raise ValueError(f"{self.out}: there is a run in it already; resume it, or choose another folder")
        self._log.keep(self.standing.epoch)
        device = torch.device(self.settings.device)
        try:
            self.observer.started(self.settings.epochs, len(self.loader))
            with torch.random.fork_rng([] if device.type == "cpu" else [device]):
                while not self.standing.is_over(self.settings):
                    self._train_epoch()
        except KeyboardInterrupt:
            self._save("last")
            raise
        best, score = self.standing.best_epoch, self.standing.best_score
        assert score is not None, "the last epoch is always evaluated"
        return TrainingResult(best, score, self._log.records(), time.perf_counter() - begun)

    def _train_epoch(self) -> None:
        self._seconds = dict.fromkeys(STAGES, 0.0)
        begun = time.perf_counter()
        self.model.train()
        with closing(self._received()) as batches:
            for batch in batches:
                self._update(batch)
        scores = self._scores()
        self._seconds["total"] = time.perf_counter() - begun
        self._end_epoch(scores)

    def _received(self) -> Generator[Batch]:
        """The epoch's batches that are still to come; counts how long each was waited for and worked on."""
        standing = self.standing
        if standing.step == len(self.loader):
            return
        asked = time.perf_counter()
        for batch in self.loader.epoch(standing.epoch):
            received = time.perf_counter()
            for stage, seconds in {**batch.seconds, "waiting": received - asked}.items():
                self._seconds[stage] = self._seconds.get(stage, 0.0) + seconds
            yield batch
            asked = time.perf_counter()
            self._seconds["computing"] += asked - received

    def _update(self, batch: Batch) -> None:
        before, settings = self.standing, self.settings
        device = torch.device(settings.device).type
        torch.manual_seed(_dropout_seed(settings, before))
        with torch.autocast(device, torch.bfloat16, enabled=settings.precision == "bfloat16"):
            losses = self.task.losses(self.model(batch.map(mover(self.model))), batch)
        loss_sum, seeds = float(losses.detach().double().sum()), losses.numel()
        if not math.isfinite(loss_sum):
            raise ValueError(
                f"the loss is {loss_sum} in epoch {before.epoch}, step {before.step}: lower the learning "
                f"rate, or look for NaN in the columns; what {self._folder('last')} holds is intact"
            )
        self.optimizer.zero_grad()
        torch.autograd.backward(batch.global_mean(losses))
        with interrupts_held():
            self.optimizer.step()
            self.standing = replace(
                before,
                step=before.step + 1,
                loss_sum=before.loss_sum + loss_sum,
                seeds=before.seeds + seeds,
                loader=self.loader.state_dict(),
            )
        self.observer.stepped(before.epoch, before.step, loss_sum / max(seeds, 1))

    def _scores(self) -> Mapping[str, float]:
        epoch, settings = self.standing.epoch + 1, self.settings
        if epoch % settings.evaluate_every and epoch != settings.epochs:
            return {}
        begun = time.perf_counter()
        scores = self.evaluate()
        self._seconds["evaluating"] = time.perf_counter() - begun
        if CHOSEN_BY not in scores:
            raise ValueError(
                f"evaluate() gave scores of {sorted(scores)}: {CHOSEN_BY!r} must be one, to choose the best"
            )
        return scores

    def _end_epoch(self, scores: Mapping[str, float]) -> None:
        ended = self.standing
        record = {
            "epoch": ended.epoch,
            "step": (ended.epoch + 1) * len(self.loader),
            "loss": ended.loss_sum / ended.seeds,
            **{score_name(name, self.task.metric): score for name, score in scores.items()},
            "seconds": {stage: round(seconds, 4) for stage, seconds in self._seconds.items()},
        }
        with interrupts_held():
            self.standing = ended.ended(scores.get(CHOSEN_BY))
            # The log first: a line too many is dropped on resume, one too few could not be made again.
            self._log.append(record)
            if scores and self.standing.best_epoch == ended.epoch:
                self._save("best")
            self._save("last")
        self.observer.epoch_ended(record)

    def _save(self, name: str) -> None:
        save_checkpoint(self._folder(name), self.model, self.optimizer, asdict(self.standing))

    def _folder(self, name: str) -> Path:
        return self.out / "checkpoints" / name


def _standing_of(saved: Mapping[str, Any], folder: Path) -> Standing:
    expected = {entry.name for entry in fields(Standing)}
    if saved.keys() != expected:
        raise ValueError(
            f"{folder}: says {sorted(saved)} of where training stood, {sorted(expected)} are needed; "
            "it is not a trainer's, or of another khop"
        )
    return Standing(**saved)


def _dropout_seed(settings: TrainerSettings, standing: Standing) -> int:
    key = DrawKey.of(settings.seed, Purpose.DROPOUT, standing.epoch, standing.step)
    return mix64(key.value ^ mix64(settings.rank))
