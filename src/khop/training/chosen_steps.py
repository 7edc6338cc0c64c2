"""Choice between training steps as CUDA graphs and as single operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

from torch import nn

from khop.distributed.processes.group import this_group
from khop.errors import Unsupported
from khop.training.settings import TrainerSettings
from khop.training.steps import BatchLoader, SamplingLoader, Steps
from khop.training.tasks import Task


def chosen_steps(
    model: nn.Module,
    task: Task,
    loader: BatchLoader,
    settings: TrainerSettings,
    shapes: Mapping[str, object] | None,
    single: Callable[[], Steps],
    warn: Callable[[str], None],
) -> Steps:
    """Return recorded steps if possible, else the steps of `single`; `warn` gets the reason on rank 0.

    `shapes` is the state of recorded steps in a checkpoint; None: they are not wanted. Collective.
    """
    if shapes is None:
        return single()
    try:
        return _recorded(model, task, loader, settings, shapes)
    except Unsupported as error:
        reason = str(error)
    if this_group().rank == 0:
        warn(f"steps are launched one by one, not recorded: {reason}")
    return single()


def _recorded(
    model: nn.Module,
    task: Task,
    loader: BatchLoader,
    settings: TrainerSettings,
    shapes: Mapping[str, object],
) -> Steps:
    if not isinstance(loader, SamplingLoader):
        raise Unsupported(f"{type(loader).__name__} has no batches with static shapes; use khop.Loader")
    batches = loader.static_batches(shapes)
    # Imported on use: it imports Triton, which comes with CUDA builds of torch alone.
    module = import_module("khop.training.recorded_steps")
    steps: Steps = module.recorded_steps(model, task, batches, settings, this_group())
    return steps
