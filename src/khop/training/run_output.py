"""Logs and checkpoints of a run that one or several ranks train."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
from torch import nn

from khop.models.node_embedding import sharded_rows
from khop.runtime.group import Group
from khop.training.checkpoint import Checkpoint, Snapshot, shared_checkpoint
from khop.training.checkpoint_writer import LAST, CheckpointWriter
from khop.training.finite import check_weights
from khop.training.model_optimizer import ModelOptimizer
from khop.training.run_log import Record
from khop.training.settings import CheckpointPolicy
from khop.training.trainer_state import TrainerState


class RunOutput:
    """Logs and checkpoints of a run. Rank 0 writes; if embeddings are sharded, all ranks send it theirs."""

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

    def begin(self, updates: int, steps: int) -> None:
        """Truncate the logs to a run of `updates` updates, with `steps` updates per epoch.

        ValueError if the folder has a run that is not resumed.
        """
        if self.writer is None:
            return
        if self.source is None and (self.writer.epochs.lines() or (self.folder / LAST).exists()):
            raise ValueError(
                f"{self._out}: there is a run in it already; resume it, or choose another folder"
            )
        self.writer.begin(self.records, updates, steps, self.source)

    def end_epoch(self, record: Record) -> None:
        """Add the record of an epoch."""
        self.records.append(record)
        if self.writer is not None:
            self.writer.log_epoch(record)

    def is_due(self) -> bool:
        """Return True if rank 0 wants a checkpoint within the epoch; with sharded rows all ranks know."""
        due = self.writer is not None and self.writer.is_due()
        return bool(self._group.gather(torch.tensor(due))[0]) if self.is_sharded else due

    def save(self, state: TrainerState, *names: str) -> None:
        """Write checkpoints on rank 0; with sharded rows all ranks send it theirs."""
        if self.writer is None and not self.is_sharded:
            return
        check_weights(self._model, state, self.folder / LAST)
        snapshot = Snapshot.of(self._model, self._optimizer, asdict(state), self.records)
        if self.writer is not None:
            self.writer.save(dict.fromkeys(names, snapshot))

    def close(self) -> None:
        """Write all remaining data; OSError if the disk does not accept it."""
        if self.writer is not None:
            self.writer.close()
