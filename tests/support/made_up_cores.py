"""A machine with cores that this one lacks, for a script and the ranks that it starts.

The kernel binds no thread to such cores. Their numbers are kept, inherited and read as Linux does it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from khop.process_tuning import CoreTopology

AFFINITY = "KHOP_TEST_AFFINITY"  # a spawned process inherits the variable


def use(system: str, cores: Iterable[int]) -> None:
    """Let this process run on these cores, unless another one started it with fewer.

    `system` has the files of /sys/devices/system. A script calls this when it is imported: so do its ranks.
    """
    os.environ.setdefault(AFFINITY, " ".join(map(str, cores)))
    os.sched_getaffinity = lambda pid: {int(core) for core in os.environ[AFFINITY].split()}
    os.sched_setaffinity = lambda pid, mask: os.environ.update({AFFINITY: " ".join(map(str, sorted(mask)))})
    CoreTopology.read.__func__.__defaults__ = (Path(system),)  # type: ignore[attr-defined]
