"""Settings of a process that trains on a CPU: the command makes them for itself, and a script by one call."""

from __future__ import annotations

import os
import sys
import warnings

from khop.arguments import whole_number
from khop.loading.cores import cores_of_rank
from khop.process_memory import tune_memory


def tune_process(threads: int | None = None) -> None:
    """Make a script run as fast as the command: set up compute threads, OpenMP waiting and the allocator.

    Call it once, after `import khop` and before torch is imported:

    * Idle threads of OpenMP sleep (OMP_WAIT_POLICY=passive), so that sampler threads and other programs have
      the cores. OpenMP reads this when torch loads it; a warning says if torch came first.
    * Freed memory stays with the process, and the first GiB of its heap requests huge pages (glibc only).
      Otherwise the kernel zeroes the pages of every large tensor anew.
    * torch computes with `threads` threads, by default one per usable core, divided among the ranks on this
      machine that a launcher has started. `khop.launch` sets this for its ranks.

    Variables of the environment win: OMP_WAIT_POLICY, OMP_NUM_THREADS (without a launcher), and those that
    choose or configure the allocator. The process keeps its peak memory until it ends. The library never
    calls it.
    """
    if threads is not None:
        whole_number("threads", threads, 1)
    if "OMP_WAIT_POLICY" not in os.environ:
        if "torch" in sys.modules:
            warnings.warn(
                "torch was imported before khop.tune_process(): idle threads of OpenMP keep cores busy; "
                "call it before torch is imported, or export OMP_WAIT_POLICY=passive",
                stacklevel=2,
            )
        else:
            os.environ["OMP_WAIT_POLICY"] = "passive"
    if not has_chosen_allocation():
        tune_memory()
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    if threads is None and not ranks and "OMP_NUM_THREADS" in os.environ:
        return
    import torch  # not above: OpenMP reads its settings when torch loads it

    torch.set_num_threads(threads or cores_of_rank(int(ranks) if ranks.isdigit() else 1))


def has_chosen_allocation() -> bool:
    """Return whether the environment tunes the allocator, or replaces the allocator of glibc."""
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    own = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "LD_PRELOAD")
    return "glibc.malloc" in tunables or any(name in os.environ for name in own)
