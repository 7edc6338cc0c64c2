"""The run of a rank, and checks of a run before the ranks start."""

from __future__ import annotations

import os
from collections.abc import Container
from pathlib import Path

import torch

from khop.api.launch import check_procs, launched_by_others
from khop.cli.commands.shared import RankOptions
from khop.cli.ranks import set_rank_up
from khop.cli.terminal import bytes_bar
from khop.distributed.processes.group import this_group
from khop.graph.atomic import in_bytes
from khop.kernels.memory import free_memory_bytes, keep_free_blocks, own_memory_bytes
from khop.process_tuning import return_freed_memory
from khop.run.build import Run, Work, fitted, prepare, resolved
from khop.run.read import RawRun
from khop.run.values import RunConfig
from khop.training.linear_setup import fix_linear
from khop.user_cache import cache_folder


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
