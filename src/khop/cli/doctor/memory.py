"""Findings on memory: its size, control groups, huge pages, and the allocator."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from rich.filesize import decimal

from khop.cli.doctor.findings import Finding, FindingState
from khop.kernels.memory import free_memory_bytes, memory_limit_bytes

AREA = "memory"
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_LEAST = 2 << 30
_ALLOCATOR = ("GLIBC_TUNABLES", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "LD_PRELOAD")


def memory(environment: Mapping[str, str], huge_pages: Path = HUGE_PAGES) -> Iterator[Finding]:
    """Yield the usable and the free memory, huge pages, and the setup of the allocator."""
    of_machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    usable = memory_limit_bytes()
    limited = f", limited by the control group; the machine has {decimal(of_machine)}"
    yield Finding(AREA, "usable memory", f"{decimal(usable)}{limited if usable < of_machine else ''}")
    yield free_memory(free_memory_bytes())
    yield _huge_pages(huge_pages)
    named = [name for name in _ALLOCATOR if environment.get(name)]
    if named:
        found = f"{', '.join(named)} set the allocator, so khop does not tune it"
        yield Finding(AREA, "allocator", found, FindingState.NOTE, f"unset {' '.join(named)}")
    else:
        yield Finding(AREA, "allocator", "tuned by the command, and in a script at its first epoch")


def free_memory(free: int) -> Finding:
    """Return the finding on so many free bytes."""
    if free >= _LEAST:
        return Finding(AREA, "free memory", decimal(free))
    remedy = "ps aux --sort=-rss | head (shows the programs that use memory)"
    return Finding(AREA, "free memory", f"{decimal(free)}: little for training", FindingState.WRONG, remedy)


def _huge_pages(path: Path) -> Finding:
    name = "huge pages"
    try:
        text = path.read_text()
    except OSError:
        return Finding(AREA, name, "not offered by this system", FindingState.NOTE)
    chosen = re.search(r"\[(\w+)\]", text)
    mode = chosen[1] if chosen else text.strip()
    if mode != "never":
        return Finding(AREA, name, mode)
    found = "never: training on the CPU is slower (docs/training.md#scripts-as-fast-as-the-command)"
    return Finding(AREA, name, found, FindingState.WRONG, f"echo madvise | sudo tee {path}")
