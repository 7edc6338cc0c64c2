"""The training loop: batches in, checkpoints and metrics out, on one process or shared by many."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from khop.batch import Batch
from khop.distributed.gradients import GradientClock, averaging
from khop.distributed.group import this_group
from khop.draw import DrawKey, Purpose, mix64
from khop.errors import PeerLost
from khop.training.checkpoint import (
    FILES,
    Checkpoint,
    Snapshot,
    newest_files,
    parsed,
    restore_model,
    restore_optimizer,
)
from khop.training.interrupts import interrupts_held, terminations_raised
from khop.training.keeper import BEST, LAST, Keeper
from khop.training.observer import Observer, Unwatched
from khop.training.placement import mover
from khop.training.run_log import Record
from khop.training.settings import TrainerSettings
from khop.training.standing import Standing, standing_of
from khop.training.tasks import Task, score_name

STAGES = ("sampling", "gathering", "waiting", "moving", "computing", "communicating", "evaluating")
_OF_A_STEP = STAGES[:-1]
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
class TrainingResult:
    """How the training went."""

    best_epoch: int
    best_score: float
    records: list[Record]  # one per epoch, as in metrics.jsonl, those before a resume included
    seconds: float  # of this call


class Trainer:
    """Trains a model with Adam; the best and the last states are kept under `out`/checkpoints.

    Two runs with equal settings and equally many compute threads take the same course bit for bit, whatever
    the loader's threads: dropout is seeded anew for every step. Torch's global generator is as it was when
    `fit` ends. As one of several ranks it is collective: every rank makes it alike and calls it; batches and
    gradients are shared, losses are those of the global batch, and rank 0 alone writes.
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
        self._schedule = settings.schedule.over(self.optimizer, settings.epochs * len(loader))
        self.standing = Standing(facts=settings.facts)
        self._group = this_group()
        self._keeper = Keeper(out, settings.keeping, self.observer.warned) if self._group.rank == 0 else None
        self._records: list[Record] = []  # of the epochs that are over
        self._is_resumed = False
        self._seconds: dict[str, float] = {}
        self._clock = GradientClock()
        self._parallel: nn.Module = self.model

    def resume(self) -> None:
        """Take up where checkpoints/last stands; `fit` then goes on with the very next batch.

        Rank 0 reads it and tells the others. A checkpoint that is damaged is reported to the observer, and
        the one before it taken. ValueError where the run was begun with other facts or other seeds.
        """
        with self._group.exchanging("reading the checkpoint"):
            checkpoint = self._newest()
            epochs = self._keeper.epochs.records() if self._keeper else []
            shared = self._group.share_bytes(json.dumps(epochs).encode())
        standing = standing_of(checkpoint.training, self.settings.facts, self._folder(LAST))
        if standing.loader:
            self.loader.load_state_dict(standing.loader)
        restore_model(self.model, checkpoint)
        restore_optimizer(self.model, self.optimizer, checkpoint)
        if standing.schedule:
            self._schedule.load_state_dict(dict(standing.schedule))
        self.standing = standing
        self._records = json.loads(shared)[: standing.epoch]
        self._is_resumed = True

    def fit(self) -> TrainingResult:
        """Train to the last epoch, or until `patience` evaluations brought nothing better.

        A loss that is no number is a ValueError. Ctrl-C, SIGTERM and a lost rank write checkpoints/last as
        the last update left everything, and go on up.
        """
        begun = time.perf_counter()
        self._begin()
        device = torch.device(self.settings.device)
        try:
            with terminations_raised(), torch.random.fork_rng([] if device.type == "cpu" else [device]):
                self.observer.started(self.settings.epochs, len(self.loader))
                while not self.standing.is_over(self.settings):
                    self._train_epoch()
        except (KeyboardInterrupt, PeerLost):
            with interrupts_held():
                self._save(LAST)
                self._close()
            raise
        except BaseException:
            self._close()
            raise
        self._close()
        best, score = self.standing.best_epoch, self.standing.best_score
        assert score is not None, "the last epoch is always evaluated"
        return TrainingResult(best, score, self._records, time.perf_counter() - begun)

    def _begin(self) -> None:
        """Compare the ranks, make the model parallel, and cut the logs back to where training stands."""
        settings, standing = self.settings, self.standing
        loader = self.loader.state_dict().get("fingerprint", "")
        own = {
            "epochs": str(settings.epochs),
            "learning rate": str(settings.learning_rate),
            "schedule": str(settings.schedule),
            "precision": settings.precision,
            "seed": str(settings.seed),
            "seeds, batch size and order": json.dumps(loader, sort_keys=True),
        }
        self._group.agree({**own, **settings.facts})
        if self._keeper is not None:
            if not self._is_resumed and (self._keeper.epochs.records() or self._folder(LAST).exists()):
                raise ValueError(
                    f"{self.out}: there is a run in it already; resume it, or choose another folder"
                )
            self._keeper.cut(standing.epoch, standing.epoch * len(self.loader) + standing.step)
        with self._group.exchanging("sharing the weights"):
            self._parallel = averaging(self._group, self.model, self._clock)

    def _train_epoch(self) -> None:
        self._seconds = dict.fromkeys(STAGES, 0.0)
        begun = time.perf_counter()
        self.model.train()
        with closing(self._received()) as batches:
            for batch, waiting in batches:
                self._update(batch, waiting)
        scores = self._scores()
        self._seconds["total"] = time.perf_counter() - begun
        self._end_epoch(scores)

    def _received(self) -> Generator[tuple[Batch, float]]:
        """The epoch's batches that are still to come, and the seconds that each was waited for."""
        standing = self.standing
        if standing.step == len(self.loader):
            return
        self._group.at("waiting for its batch", standing.epoch, standing.step)
        asked = time.perf_counter()
        for batch in self.loader.epoch(standing.epoch):
            yield batch, time.perf_counter() - asked
            self._group.at("waiting for its batch", standing.epoch, batch.step + 1)
            asked = time.perf_counter()

    def _update(self, batch: Batch, waiting: float) -> None:
        before, settings, group = self.standing, self.settings, self._group
        begun = time.perf_counter()
        device = torch.device(settings.device).type
        torch.manual_seed(_dropout_seed(settings.seed, before, group.rank))
        with (
            group.exchanging("computing the loss", before.epoch, before.step),
            torch.autocast(device, torch.bfloat16, enabled=settings.precision == "bfloat16"),
        ):
            losses = self.task.losses(self._parallel(batch.map(mover(self.model))), batch)
        loss_sum = float(losses.detach().double().sum())
        if not math.isfinite(loss_sum):
            raise ValueError(
                f"the loss is {loss_sum} in epoch {before.epoch}, step {before.step}: lower the learning "
                f"rate, or look for NaN in the columns; what {self._folder(LAST)} holds is intact"
            )
        self.optimizer.zero_grad()
        with group.exchanging("exchanging gradients", before.epoch, before.step):
            torch.autograd.backward(batch.global_mean(losses))
        communicating = self._clock.waited(time.perf_counter())
        seconds = {**batch.seconds, "waiting": waiting, "communicating": communicating}
        # Before the update, so that what is lost here is lost on every rank.
        with group.exchanging("exchanging losses", before.epoch, before.step):
            told = self._told(loss_sum, losses.numel(), seconds, begun)
        with interrupts_held():
            self.optimizer.step()
            self._schedule.step()
            self._advance(told)
        self._note_seconds(told, time.perf_counter() - begun)

    def _told(self, loss_sum: float, count: int, seconds: Mapping[str, float], begun: float) -> Tensor:
        """(ranks, 2 + stages), float64: what every rank says of this step, the same on all."""
        computing = time.perf_counter() - begun - seconds["communicating"]
        spent = {**seconds, "computing": computing}
        of_stages = [spent.get(stage, 0.0) for stage in _OF_A_STEP]
        return self._group.gather(torch.tensor([loss_sum, count, *of_stages], dtype=torch.float64))

    def _advance(self, told: Tensor) -> None:
        """One update further, with what all ranks told of it."""
        before = self.standing
        loss_sum, seeds = float(told[:, 0].sum()), int(told[:, 1].sum())
        self.standing = replace(
            before,
            step=before.step + 1,
            loss_sum=before.loss_sum + loss_sum,
            seeds=before.seeds + seeds,
            loader=self.loader.state_dict(),
            schedule=self._schedule.state_dict(),
        )
        loss = loss_sum / max(seeds, 1)
        if self._keeper is not None:
            of_stages = told[:, 2:].T.tolist()
            seconds = {
                stage: [round(s, 6) for s in of_ranks]
                for stage, of_ranks in zip(_OF_A_STEP, of_stages, strict=True)
            }
            self._keeper.log_step(
                {"epoch": before.epoch, "step": before.step, "loss": loss, "seeds": seeds, "seconds": seconds}
            )
            if self._keeper.is_due():
                self._save(LAST)
        self.observer.stepped(before.epoch, before.step, loss)

    def _note_seconds(self, told: Tensor, computing: float) -> None:
        spent = dict(zip(_OF_A_STEP, told[self._group.rank, 2:].tolist(), strict=True))
        spent["computing"] = computing - spent["communicating"]
        for stage, seconds in spent.items():
            self._seconds[stage] += seconds

    def _scores(self) -> Mapping[str, float]:
        epoch, settings = self.standing.epoch + 1, self.settings
        if epoch % settings.evaluate_every and epoch != settings.epochs:
            return {}
        begun = time.perf_counter()
        self._group.meet("evaluating")
        with self._group.exchanging("evaluating", self.standing.epoch, self.standing.step):
            scores = self.evaluate()
        self._seconds["evaluating"] = time.perf_counter() - begun
        if CHOSEN_BY not in scores:
            raise ValueError(
                f"evaluate() gave scores of {sorted(scores)}: {CHOSEN_BY!r} must be one, to choose the best"
            )
        return scores

    def _end_epoch(self, scores: Mapping[str, float]) -> None:
        ended = self.standing
        record: Record = {
            "epoch": ended.epoch,
            "step": (ended.epoch + 1) * len(self.loader),
            "loss": ended.loss_sum / ended.seeds,
            **{score_name(name, self.task.metric): score for name, score in scores.items()},
            "seconds": {stage: round(seconds, 4) for stage, seconds in self._seconds.items()},
        }
        with interrupts_held():
            self.standing = ended.ended(scores.get(CHOSEN_BY))
            self._records.append(record)
            if self._keeper is not None:
                self._keeper.log_epoch(record)
            is_best = bool(scores) and self.standing.best_epoch == ended.epoch
            self._save(*([BEST, LAST] if is_best else [LAST]))
        self.observer.epoch_ended(record)

    def _save(self, *names: str) -> None:
        if self._keeper is not None:
            snapshot = Snapshot.of(self.model, self.optimizer, asdict(self.standing))
            self._keeper.save(dict.fromkeys(names, snapshot))

    def _close(self) -> None:
        if self._keeper is not None:
            self._keeper.close()

    def _newest(self) -> Checkpoint:
        """The newest checkpoint that is whole, as rank 0 finds it."""
        folder, found = self._folder(LAST), dict[str, bytes]()
        if self._keeper is not None:
            found = newest_files(folder, self.observer.warned)
        return parsed(folder, {name: self._group.share_bytes(found.get(name)) for name in FILES})

    def _folder(self, name: str) -> Path:
        return self.out / "checkpoints" / name


def _dropout_seed(seed: int, standing: Standing, rank: int) -> int:
    key = DrawKey.of(seed, Purpose.DROPOUT, standing.epoch, standing.step)
    return mix64(key.value ^ mix64(rank))
