"""Choice between training steps as CUDA graphs and as single operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

import torch
from torch import nn

from khop.distributed.processes.group import this_group
from khop.errors import Unsupported
from khop.training.gradients import broadcast_weights
from khop.training.settings import Launches, TrainerSettings
from khop.training.steps import BatchLoader, SamplingLoader, Steps
from khop.training.tasks import Task


def chosen_steps(
    model: nn.Module,
    task: Task,
    loader: BatchLoader,
    settings: TrainerSettings,
    launches: Launches,
    shapes: Mapping[str, object],
    single: Callable[[], Steps],
    say: Callable[[str], None],
) -> Steps:
    """Return recorded steps if requested and possible on all ranks, else the steps of `single`. Collective.

    `say` gets the choice on rank 0 if it was automatic or differs from the request. `shapes` is the state of
    recorded steps in a checkpoint.
    """
    if launches == "single":
        return single()
    group, steps, reason = this_group(), None, ""
    try:
        if launches == "auto":
            _check_generators(model)
        steps = _recorded(model, task, loader, settings, shapes, say)
    except Unsupported as error:
        reason = str(error)
    if group.world_size > 1:
        failed = group.gather(torch.tensor([steps is None]))
        if steps is not None and bool(failed.any()):
            steps, reason = None, "another rank cannot record them"
    if steps is None:
        for parameter in model.parameters():
            parameter.grad = None
        if group.rank == 0:
            say(f"steps are launched one by one, not recorded: {reason}")
        return single()
    if launches == "auto" and group.rank == 0:
        say("steps are recorded as CUDA graphs; --launches single launches them one by one")
    broadcast_weights(group, model)
    return steps


def _check_generators(model: nn.Module) -> None:
    """Raise Unsupported for torch's dropout, whose generator is not reset in recorded steps."""
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            raise Unsupported(
                f"{name or 'the model'} ({type(module).__name__}) would draw other random numbers in a "
                "resumed run; --launches recorded accepts that"
            )


def _recorded(
    model: nn.Module,
    task: Task,
    loader: BatchLoader,
    settings: TrainerSettings,
    shapes: Mapping[str, object],
    say: Callable[[str], None],
) -> Steps:
    if not isinstance(loader, SamplingLoader):
        raise Unsupported(f"{type(loader).__name__} has no batches with static shapes; use khop.Loader")
    batches = loader.static_batches(shapes)
    # Imported on use, because it imports Triton, which only comes with CUDA builds of torch.
    module = import_module("khop.training.recorded_steps")
    steps: Steps = module.recorded_steps(model, task, batches, settings, this_group(), shapes, say)
    return steps
