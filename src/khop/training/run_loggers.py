"""Loggers of a run in other tools: Weights & Biases and MLflow, optional dependencies."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

from khop.arguments import check_word, mapping_of
from khop.training.observer import Unwatched

LoggerKind = Literal["wandb", "mlflow"]
_INSTALL = {"wandb": "pip install wandb", "mlflow": "pip install mlflow-skinny, or mlflow"}


def check_logger(kind: LoggerKind) -> None:
    """Raise ValueError with the install command if the package of a logger is not installed."""
    check_word("logger", kind, LoggerKind)
    if find_spec(kind) is None:
        raise ValueError(f"{kind} is not installed: {_INSTALL[kind]}")


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
        numbers = {
            f"epoch/{name}": float(value)
            for name, value in record.items()
            if name not in ("epoch", "step") and isinstance(value, int | float)
        }
        self.log(numbers, update)

    def log(self, numbers: Mapping[str, float], update: int) -> None:
        """Write numbers by name for an update."""
        raise NotImplementedError


class WandbLog(_NumberLog):
    """An observer that logs to a run of Weights & Biases: the run that is active, or a new one.

    `settings` are the run's config. `options` go to `wandb.init`, such as project and mode; in mode "offline"
    nothing leaves this machine until `wandb sync`. The variables of the environment that wandb reads hold.
    """

    def __init__(
        self, settings: Mapping[str, object] | None = None, options: Mapping[str, object] | None = None
    ) -> None:
        super().__init__()
        mapping_of("settings", {} if settings is None else settings, "names to values")
        mapping_of("options", {} if options is None else options, "names to values")
        check_logger("wandb")
        wandb = import_module("wandb")  # here: it takes a second to import, and may be missing
        self._is_own = wandb.run is None
        self._run: Any = wandb.init(**(options or {})) if self._is_own else wandb.run
        self._run.config.update(dict(settings or {}), allow_val_change=True)

    def log(self, numbers: Mapping[str, float], update: int) -> None:
        """Write numbers by name for an update."""
        self._run.log(dict(numbers), step=update)

    def close(self) -> None:
        """End the run, unless it was active before."""
        if self._is_own:
            self._run.finish()


class MlflowLog(_NumberLog):
    """An observer that logs to a run of MLflow: the run that is active, or a new one.

    `settings` are the run's parameters. `options` go to `mlflow.start_run`, such as run_name. The store is
    the one of `mlflow.set_tracking_uri`, by default that of the environment, or a folder here.
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
        """Write numbers by name for an update."""
        self._mlflow.log_metrics(dict(numbers), step=update)

    def close(self) -> None:
        """End the run, unless it was active before."""
        if self._is_own:
            self._mlflow.end_run()
