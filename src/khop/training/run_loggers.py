"""Loggers of a run for TensorBoard, Weights & Biases and MLflow, all optional dependencies."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from khop.arguments import check_word, instance_of, mapping_of, path_of
from khop.training.run_log import EPOCHS
from khop.training.step_clock import TimedStep, Unwatched, seconds_by_stage

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


LoggerKind = Literal["wandb", "mlflow"]
_INSTALL = {"wandb": "pip install wandb", "mlflow": "pip install mlflow-skinny, or mlflow"}


def check_logger(kind: LoggerKind) -> None:
    """Raise ValueError with the install command if the package of a logger is not installed."""
    check_word("logger", kind, LoggerKind)
    if find_spec(kind) is None:
        raise ValueError(f"{kind} is not installed: {_INSTALL[kind]}")


def _numbers(record: Mapping[str, object]) -> dict[str, float]:
    """Return the numbers of a line of metrics.jsonl, or of an evaluation, by their names in the curves."""
    return {
        f"epoch/{name}": float(value)
        for name, value in record.items()
        if name not in ("epoch", "step", EPOCHS) and isinstance(value, int | float)
    }


def _update_of(record: Mapping[str, object], steps: int) -> int:
    """Return the number of the update, from 1, of a line of steps.jsonl."""
    epoch, step = record["epoch"], record["step"]
    assert isinstance(epoch, int)
    assert isinstance(step, int)
    return epoch * steps + step + 1


class _NumberLog(Unwatched):
    """An observer that passes on the loss of each update and the numbers of each epoch, by update from 1."""

    def __init__(self) -> None:
        self._steps_per_epoch = 0

    def started(self, epochs: int, steps: int) -> None:
        """Store the number of steps per epoch, to number updates."""
        self._steps_per_epoch = steps

    def stepped(self, epoch: int, step: int, loss: float) -> None:
        """Log the loss over the global batch."""
        self.log({"step/loss": loss}, epoch * self._steps_per_epoch + step + 1)

    def epoch_ended(self, record: Mapping[str, object]) -> None:
        """Log every number of the epoch's line in metrics.jsonl."""
        update = record["step"]
        assert isinstance(update, int)
        self.log(_numbers(record), update)

    def evaluated(self, record: Mapping[str, object]) -> None:
        """Log the scores of an evaluation within an epoch."""
        self.log(_numbers(record), _update_of(record, self._steps_per_epoch))

    def log(self, numbers: Mapping[str, float], update: int) -> None:
        """Write numbers by name for an update."""
        raise NotImplementedError


class WandbLog(_NumberLog):
    """An observer that logs to a run of Weights & Biases: the run that is active, or a new one.

    The environment variables that wandb reads apply.

    Args:
        settings: Config of the run by name; default none.
        options: Arguments of `wandb.init`, such as project and mode; with mode "offline" nothing leaves
            this machine until `wandb sync`. Default none.
    Raises:
        ValueError: wandb is not installed.
    Example:
        >>> def logged(trainer_of):
        ...     log = khop.WandbLog({"hidden": 256}, options={"project": "debian", "mode": "offline"})
        ...     trainer_of(observer=log).fit()
        ...     log.close()
    """

    def __init__(
        self, settings: Mapping[str, object] | None = None, options: Mapping[str, object] | None = None
    ) -> None:
        super().__init__()
        mapping_of("settings", {} if settings is None else settings, "names to values")
        mapping_of("options", {} if options is None else options, "names to values")
        check_logger("wandb")
        wandb = import_module("wandb")  # imported on use, because it takes a second and may be missing
        self._is_own = wandb.run is None
        self._run: Any = wandb.init(**(options or {})) if self._is_own else wandb.run
        self._run.config.update(dict(settings or {}), allow_val_change=True)

    def log(self, numbers: Mapping[str, float], update: int) -> None:
        """Write numbers for an update.

        Args:
            numbers: Numbers by name.
            update: Number of the update, from 1.
        """
        self._run.log(dict(numbers), step=update)

    def close(self) -> None:
        """End the run, unless it was active before."""
        if self._is_own:
            self._run.finish()


class MlflowLog(_NumberLog):
    """An observer that logs to a run of MLflow: the run that is active, or a new one.

    The tracking URI is the one set by `mlflow.set_tracking_uri`, by default that of the environment, or a
    local folder.

    Args:
        settings: Parameters of the run by name; default none.
        options: Arguments of `mlflow.start_run`, such as run_name; default none.
    Raises:
        ValueError: MLflow is not installed.
    Example:
        >>> def logged(trainer_of):
        ...     log = khop.MlflowLog({"hidden": 256}, options={"run_name": "debian"})
        ...     trainer_of(observer=log).fit()
        ...     log.close()
    """

    def __init__(
        self, settings: Mapping[str, object] | None = None, options: Mapping[str, object] | None = None
    ) -> None:
        super().__init__()
        mapping_of("settings", {} if settings is None else settings, "names to values")
        mapping_of("options", {} if options is None else options, "names to values")
        check_logger("mlflow")
        self._mlflow: Any = import_module("mlflow")
        self._is_own = self._mlflow.active_run() is None
        if self._is_own:
            self._mlflow.start_run(**(options or {}))
        self._mlflow.log_params({name: str(value)[:500] for name, value in (settings or {}).items()})

    def log(self, numbers: Mapping[str, float], update: int) -> None:
        """Write numbers for an update.

        Args:
            numbers: Numbers by name.
            update: Number of the update, from 1.
        """
        self._mlflow.log_metrics(dict(numbers), step=update)

    def close(self) -> None:
        """End the run, unless it was active before."""
        if self._is_own:
            self._mlflow.end_run()


FLUSH_S = 10  # longest delay of the curves


def check_tensorboard() -> None:
    """Raise ValueError with the install command if TensorBoard is not installed."""
    if find_spec("tensorboard") is None:
        raise ValueError("TensorBoard is not installed: pip install tensorboard")


class TensorBoard(_NumberLog):
    """An observer that writes event files into a folder: losses, scores, seconds, and the config as text.

    Steps count updates from 1. The first event opens the files. If a run is resumed, values in earlier
    files from that update on are no longer shown.

    Args:
        folder: Folder of the event files.
        config: Text to show with the curves, such as the TOML of a run.
    Raises:
        ValueError: `folder` is not a path, or `config` is not text.
    Example:
        >>> log = khop.TensorBoard(tmp / "curves", config="hidden = 256")
        >>> log.close()
    """

    def __init__(self, folder: str | os.PathLike[str], config: str) -> None:
        self.folder = path_of("folder", folder)
        instance_of("config", config, str, "must be text, such as the TOML of a run")
        super().__init__()
        self.config = config  # TOML
        self._writer: SummaryWriter | None = None

    def timed(self, step: TimedStep) -> None:
        """Write this rank's seconds by stage."""
        update = step.batch.epoch * self._steps_per_epoch + step.batch.step + 1
        for stage, seconds in seconds_by_stage(step.spans).items():
            self._opened(update).add_scalar(f"seconds/{stage}", seconds, update)

    def epoch_ended(self, record: Mapping[str, object]) -> None:
        """Write every number of the epoch's line in metrics.jsonl to disk."""
        super().epoch_ended(record)
        self._flush()

    def evaluated(self, record: Mapping[str, object]) -> None:
        """Write the scores of an evaluation within an epoch to disk."""
        super().evaluated(record)
        self._flush()

    def log(self, numbers: Mapping[str, float], update: int) -> None:
        """Write numbers by name for an update.

        Args:
            numbers: Numbers by the name of their curve.
            update: Number of the update, from 1: the position on the horizontal axis.
        """
        for name, value in numbers.items():
            self._opened(update).add_scalar(name, value, update)

    def close(self) -> None:
        """Write all remaining events to disk and close the files."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _flush(self) -> None:
        if self._writer is not None:
            self._writer.flush()

    def _opened(self, update: int) -> SummaryWriter:
        if self._writer is None:
            # Imported on use, because it may be missing, and takes a second.
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self.folder), purge_step=update, flush_secs=FLUSH_S)
            self._writer.add_text("config", f"```toml\n{self.config}\n```", update)
        return self._writer
