"""Curves for TensorBoard, an optional dependency."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

from khop.arguments import instance_of, path_of
from khop.training.observer import Unwatched
from khop.training.step_clock import TimedStep, seconds_by_stage

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FLUSH_S = 10  # longest delay of the curves


def check_tensorboard() -> None:
    """Raise ValueError with the install command if TensorBoard is not installed."""
    if find_spec("tensorboard") is None:
        raise ValueError("TensorBoard is not installed: pip install tensorboard")


class TensorBoard(Unwatched):
    """An observer that writes event files into a folder: losses, scores, seconds, and the config as text.

    Steps count updates from 1. The first event opens the files. If a run is resumed, values in earlier files
    from that update on are no longer shown.
    """

    def __init__(self, folder: str | os.PathLike[str], config: str) -> None:
        self.folder = path_of("folder", folder)
        instance_of("config", config, str, "must be text, such as the TOML of a run")
        self.config = config  # TOML
        self._steps_per_epoch = 0
        self._writer: SummaryWriter | None = None

    def started(self, epochs: int, steps: int) -> None:
        """Store the number of steps per epoch, to number updates."""
        self._steps_per_epoch = steps

    def stepped(self, epoch: int, step: int, loss: float) -> None:
        """Write the loss over the global batch."""
        update = self._update(epoch, step)
        self._opened(update).add_scalar("step/loss", loss, update)

    def timed(self, step: TimedStep) -> None:
        """Write this rank's seconds by stage."""
        update = self._update(step.batch.epoch, step.batch.step)
        for stage, seconds in seconds_by_stage(step.spans).items():
            self._opened(update).add_scalar(f"seconds/{stage}", seconds, update)

    def epoch_ended(self, record: Mapping[str, object]) -> None:
        """Write every number of the epoch's line in metrics.jsonl."""
        update = record["step"]
        assert isinstance(update, int)
        for name, value in record.items():
            if name not in ("epoch", "step") and isinstance(value, int | float):
                self._opened(update).add_scalar(f"epoch/{name}", value, update)
        self._opened(update).flush()

    def close(self) -> None:
        """Write all remaining events to disk and close the files."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _update(self, epoch: int, step: int) -> int:
        return epoch * self._steps_per_epoch + step + 1

    def _opened(self, update: int) -> SummaryWriter:
        if self._writer is None:
            # Imported here: it may be missing, and takes a second to import.
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self.folder), purge_step=update, flush_secs=FLUSH_S)
            self._writer.add_text("config", f"```toml\n{self.config}\n```", update)
        return self._writer
