"""Choice between training steps as CUDA graphs and as single operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import nn

from khop.distributed.processes.group import Group, this_group
from khop.errors import Unsupported
from khop.training.gradients import broadcast
from khop.training.settings import Launches, TrainerSettings
from khop.training.steps import BatchLoader, SamplingLoader, Steps
from khop.training.tasks import Task

if TYPE_CHECKING:
    from khop.loading.device.device_source import StaticBatches

Made = TypeVar("Made")


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
    group = this_group()
    batches, reason = _on_all_ranks(group, partial(_batches, model, loader, launches, shapes))
    steps: Steps | None = None
    if batches is not None:
        # Imported on use, because it imports Triton, which only comes with CUDA builds of torch.
        module = import_module("khop.training.recorded_steps")
        made = (model, task, batches, settings, group, shapes, say)
        steps, reason = _on_all_ranks(group, partial(module.recorded_steps, *made))
    if steps is None:
        for parameter in model.parameters():
            parameter.grad = None
        if group.rank == 0:
            say(f"steps are launched one by one, not recorded: {reason}")
        return single()
    if launches == "auto" and group.rank == 0:
        say("steps are recorded as CUDA graphs; --launches single launches them one by one")
    broadcast(group, (*model.parameters(), *model.buffers()))
    return steps


def _on_all_ranks(group: Group, make: Callable[[], Made]) -> tuple[Made | None, str]:
    """Return a result; None, with the reason, on all ranks if one of them raises Unsupported. Collective."""
    made, reason = None, "another rank cannot record them"
    try:
        made = make()
    except Unsupported as error:
        reason = str(error)
    failed = group.gather(torch.tensor([made is None]))
    return (None, reason) if bool(failed.any()) else (made, "")


def _batches(
    model: nn.Module, loader: BatchLoader, launches: Launches, shapes: Mapping[str, object]
) -> StaticBatches:
    """Return the batches of recorded steps; Unsupported if there are none, or if steps cannot be recorded."""
    if launches == "auto":
        _check_generators(model)
    if not isinstance(loader, SamplingLoader):
        raise Unsupported(f"{type(loader).__name__} has no batches with static shapes; use khop.Loader")
    reason = why_not_recorded(model)
    if reason is not None:
        raise Unsupported(reason)
    batches: StaticBatches = loader.static_batches(shapes)
    return batches


def why_not_recorded(model: nn.Module) -> str | None:
    """Return the reason why steps of a model cannot be recorded; None if none is known."""
    for name, module in model.named_modules():
        kind = f"{name or 'the model'} ({type(module).__name__})"
        if getattr(module, "running_mean", None) is not None or isinstance(
            module, nn.modules.batchnorm._BatchNorm
        ):
            return f"{kind} computes statistics over the rows of a batch, and recorded batches are padded"
        if getattr(module, "sparse", False) is True or hasattr(module, "take_gradients"):
            return f"{kind} has sparse gradients, whose number of rows changes"
    return None


def _check_generators(model: nn.Module) -> None:
    """Raise Unsupported for torch's dropout, whose generator is not reset in recorded steps."""
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            raise Unsupported(
                f"{name or 'the model'} ({type(module).__name__}) would draw other random numbers in a "
                "resumed run; --launches recorded accepts that"
            )
