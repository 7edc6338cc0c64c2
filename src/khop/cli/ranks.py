"""A command's work as every rank of a run: in processes started here, or in those of a launcher."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeVar

import torch
import typer

from khop.cli.start import INTERRUPTED, TERMINATED, set_memory_up
from khop.config.read import RawRun, with_options
from khop.config.values import RunConfig
from khop.distributed.group import Group
from khop.errors import Terminated
from khop.launching import launch, launched_by_others
from khop.loading.cores import cores_of_rank, sampler_threads

Request = TypeVar("Request")
RankWork = Callable[[int, torch.device, Request], None]
Procs = Annotated[
    int | None,
    typer.Option(
        "--procs",
        metavar="INT",
        help="Processes on this machine that share the work; on more machines: torchrun ... -m khop.",
        show_default=False,
    ),
]


def as_ranks(work: RankWork[Request], request: Request, config: RunConfig, procs: int | None) -> None:
    """Call `work(rank, device, request)` as each of `procs` ranks, or as the one that a launcher made this.

    Ctrl-C and SIGTERM end the command with the exit codes that they have in a shell.
    """
    count = None if launched_by_others() else procs or 1
    try:
        launch(
            work,
            procs=count,
            arguments=(request,),
            device=torch.device(config.device).type if count != 1 else config.device,
            deadline=config.deadline,
        )
    except Terminated:
        raise typer.Exit(TERMINATED) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def set_rank_up(raw: RawRun, group: Group, device: torch.device, *, keeps_threads: bool) -> RawRun:
    """The run as this rank carries it out: with its GPU, and unless threads are kept its part of the cores.

    Its memory is tuned: a process that was spawned did not come by the entry point.
    """
    if group.world_size == 1:
        return raw
    set_memory_up()
    cores = cores_of_rank(group.local_world_size)
    given: dict[str, object] = {"device": str(device)}
    if not keeps_threads:
        given["compute_threads"] = cores
    if not raw.values.get("threads"):
        given["threads"] = sampler_threads(cores)
    return with_options(raw, given)
