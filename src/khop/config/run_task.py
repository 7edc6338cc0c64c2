"""The protocol of a run's task: the part of a run that differs between tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from torch import nn

from khop.api.loader import Loader
from khop.api.open_graph import Graph
from khop.inference.chunks import Progress
from khop.inference.predictions import Predictions
from khop.schema import NodeType
from khop.training.tasks import Task


class RunTask(Protocol):
    """Model, batches and scores of a run, such as those of node classification or of a task from outside."""

    @property
    def model(self) -> nn.Module:
        """The model of the run."""
        ...

    @property
    def task(self) -> Task:
        """The training task."""
        ...

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits to evaluate, by their names in results. "val" selects the best checkpoint."""
        ...

    @property
    def whole(self) -> Graph:
        """The graph for inference, with every edge that the model follows."""
        ...

    @property
    def node_types(self) -> tuple[NodeType, ...]:
        """The node types with output rows of the model."""
        ...

    def loader(self) -> Loader:
        """Make the loader of training batches."""
        ...

    def scores(
        self, splits: tuple[str, ...], progress: Progress, beside: Sequence[str] = ()
    ) -> dict[str, float]:
        """Compute the task's metric on each split. Other metrics have keys like "val/roc-auc".

        Collective: the ranks share the work, and each rank gets all scores. The scores do not depend on the
        number of ranks.
        """
        ...


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Scores of some splits, and their inputs."""

    scores: dict[str, float]  # as RunTask.scores returns them
    predictions: Predictions
    baselines: Mapping[str, float] = field(default_factory=dict)  # such as "val/majority/accuracy"


@runtime_checkable
class PreparingTask(RunTask, Protocol):
    """A task with work before an epoch of training, such as a table of hard negatives."""

    def before_epoch(self, epoch: int) -> None:
        """Prepare an epoch, before its first batch is made. Collective."""
        ...


@runtime_checkable
class PredictingTask(RunTask, Protocol):
    """A task whose predictions can be written: those of khop, and `khop.config.node_task.NodeTask.of`."""

    def evaluated(
        self, splits: tuple[str, ...], progress: Progress, beside: Sequence[str] = ()
    ) -> Evaluation:
        """Compute scores as `scores` does, and keep the outputs. Collective."""
        ...
