"""Execution of a command on every rank: processes started by the command or by a launcher."""

from __future__ import annotations

from collections.abc import Callable, Container
from functools import partial
from typing import TypeVar

import torch
import typer

from khop.api.launch import Permission, launch, launched_by_others
from khop.cli.commands.shared import RankOptions
from khop.cli.interrupts import INTERRUPTED
from khop.cli.lines import tell
from khop.cli.progress import kernel_lines
from khop.cli.start import TERMINATED, set_output_up
from khop.distributed.processes.group import Group
from khop.errors import Terminated, is_told
from khop.process_tuning import cores_of_rank, sampler_threads, tune_memory
from khop.run.check import AUTO
from khop.run.read import RawRun, with_options
from khop.run.values import RunConfig

Request = TypeVar("Request")
RankWork = Callable[[int, torch.device, Request], None]


def with_device(raw: RawRun, config: RunConfig, ranks: RankOptions) -> RunConfig:
    """Return the run on the CPU if its device is unset and it starts more ranks than there are GPUs."""
    procs, gpus = ranks.procs or 1, torch.cuda.device_count()
    is_chosen = raw.values.get("device", AUTO) != AUTO
    if is_chosen or config.device == "cpu" or procs <= max(1, gpus) or launched_by_others() is not None:
        return config
    tell(f"device is cpu: this machine has {gpus} GPU{'s' * (gpus > 1)} for {procs} processes")
    return config.model_copy(update={"device": "cpu"})


def as_ranks(work: RankWork[Request], request: Request, config: RunConfig, ranks: RankOptions) -> None:
    """Call `work(rank, device, request)` on each rank, or on the rank assigned by a launcher.

    Ctrl-C and SIGTERM end the command with the exit codes that shells use for them.
    """
    count = 1 if ranks.procs is None and launched_by_others() is None else ranks.procs
    try:
        launch(
            partial(_watched, work),
            procs=count,
            arguments=(request,),
            device=torch.device(config.device).type if count != 1 else config.device,
            deadline=config.deadline,
            interface=config.interface,
            allow=_permissions(config, ranks),
            bind=None if ranks.bind is None else ranks.bind.value,
        )
    except KeyboardInterrupt as stop:
        if not is_told(stop):
            tell("stopped")
        raise typer.Exit(TERMINATED if isinstance(stop, Terminated) else INTERRUPTED) from None


def _watched(work: RankWork[Request], rank: int, device: torch.device, request: Request) -> None:
    """Call `work`; rank 0 shows the progress of kernel compilation."""
    with kernel_lines(rank, device):
        work(rank, device, request)


def _permissions(config: RunConfig, ranks: RankOptions) -> list[Permission]:
    """Return the permissions of the ranks, from the options of a command."""
    allowed: dict[Permission, bool] = {"public": config.allow_public, "oversubscribe": ranks.oversubscribe}
    return [permission for permission, is_allowed in allowed.items() if is_allowed]


def set_rank_up(raw: RawRun, group: Group, device: torch.device, kept: Container[str]) -> RawRun:
    """Adapt the run to this rank: set its GPU, and the thread counts that are not in `kept`.

    Threads get the rank's share of the cores. Memory and output are set up too, because a spawned process
    does not run the entry point.
    """
    if group.world_size == 1:
        return raw
    tune_memory()
    set_output_up()
    cores = cores_of_rank(group.local_world_size)
    threads = {"compute_threads": cores, "threads": sampler_threads(cores, device.type)}
    chosen = {name: count for name, count in threads.items() if name not in kept}
    return with_options(raw, {"device": str(device), **chosen})
