"""Execution of a command on every rank, and checks that run once before the ranks start.

The ranks are processes started by the command or by a launcher.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
import typer

from khop.api.launch import Permission, check_procs, launch, launched_by_others
from khop.cli.commands.shared import RankOptions
from khop.cli.interrupts import INTERRUPTED
from khop.cli.lines import tell
from khop.cli.progress import kernel_lines
from khop.cli.start import TERMINATED, set_output_up
from khop.cli.terminal import bytes_bar
from khop.distributed.processes.group import Group, this_group
from khop.errors import Terminated, is_told
from khop.graph.atomic import in_bytes
from khop.kernels.memory import free_memory_bytes, keep_free_blocks, own_memory_bytes
from khop.process_tuning import cores_of_rank, return_freed_memory, sampler_threads, tune_memory
from khop.run.build import Run, Work, fitted, prepare, resolved
from khop.run.check import AUTO
from khop.run.read import RawRun, with_options
from khop.run.values import RunConfig
from khop.training.linear_setup import fix_linear
from khop.user_cache import cache_folder

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


def run_of_rank(
    raw: RawRun, device: torch.device, kept: Container[str], checkpoint: Path | None = None
) -> Run:
    """Prepare the run for this rank (see `set_rank_up`): open its data and set torch's threads.

    `checkpoint` will be restored; see `prepare`.
    """
    with bytes_bar() as notice:
        run = prepare(set_rank_up(raw, this_group(), device, kept), cache_folder(), notice, checkpoint)
    torch.set_num_threads(run.config.compute_threads)
    fix_linear(os.environ.get("KHOP_LINEAR"))
    return run


def fitted_run_of_rank(
    raw: RawRun,
    device: torch.device,
    kept: Container[str],
    work: Work = "training",
    checkpoint: Path | None = None,
) -> tuple[Run, str | None]:
    """Prepare a run as `run_of_rank` does, with a prefetch that fits in the free memory.

    Returns the run, and a line about the memory if that is scarce; freed memory is then returned to the
    system.
    """
    run = run_of_rank(raw, device, kept, checkpoint)
    run, line = fitted(run, set_rank_up(raw, this_group(), device, kept), work, checkpoint)
    if line is not None:
        keep_free_blocks(0)
        return_freed_memory()
    return run, line


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


def check_once(raw: RawRun, config: RunConfig, ranks: RankOptions) -> None:
    """Raise ValueError for an invalid run or number of processes, before processes are started."""
    if ranks.procs is None or ranks.procs == 1 or launched_by_others() is not None:
        return
    check_procs(ranks.procs, config.device, ["oversubscribe"] if ranks.oversubscribe else ())
    needed, free = ranks.procs * own_memory_bytes(), free_memory_bytes()
    if needed > free:
        raise ValueError(
            f"--procs {ranks.procs}: the processes need {in_bytes(needed)} for Python and torch alone, and "
            f"{in_bytes(free)} is free; give fewer processes"
        )
    with bytes_bar() as notice:
        resolved(raw, cache_folder(), notice)
