"""What a run is about: the part of it that differs between tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import nn

from khop.api import Graph
from khop.loader import Loader
from khop.schema import NodeType
from khop.training.chunks import Progress
from khop.training.tasks import Task


class RunTask(Protocol):
    """Nodes that are classified, or links that are predicted: a model of them, its batches, its scores."""

    @property
    def model(self) -> nn.Module:
        """What is trained."""
        ...

    @property
    def task(self) -> Task:
        """What it is trained for."""
        ...

    @property
    def splits(self) -> tuple[str, ...]:
        """What can be measured, as results call it; "val" chooses the best checkpoint."""
        ...

    @property
    def whole(self) -> Graph:
        """What inference runs over: every edge that the model follows."""
        ...

    @property
    def node_types(self) -> tuple[NodeType, ...]:
        """The node types that the model gives rows of."""
        ...

    def loader(self) -> Loader:
        """The batches of training."""
        ...

    def scores(
        self, splits: tuple[str, ...], progress: Progress, beside: Sequence[str] = ()
    ) -> dict[str, float]:
        """The task's metric on each of the splits; others stand beside it as "val/roc-auc".

        Collective: the ranks share the work, and each gets the scores, which do not depend on their number.
        """
        ...
