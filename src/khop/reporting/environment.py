"""The environment of a run: versions, machine, and the memory that its processes used."""

from __future__ import annotations

import os
import platform
import resource
from importlib import metadata
from pathlib import Path

import khop

CPU_FACTS = Path("/proc/cpuinfo")
_PACKAGES = ("torch", "numpy")


def environment(device: str, cores: int) -> dict[str, object]:
    """Return versions and the machine of this process; `device` is the name of its GPU, or "cpu"."""
    return {
        "khop": khop.__version__,
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in _PACKAGES},
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": processor(),
        "cores": cores,
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "device": device,
    }


def processor(facts: Path = CPU_FACTS) -> str:
    """Return the name of the processor, or of its architecture where the system does not name it."""
    try:
        lines = facts.read_text().splitlines()
    except OSError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model")))
    return next(names, platform.machine())


def peak_memory_bytes() -> int:
    """Return the most memory that this process has had so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
