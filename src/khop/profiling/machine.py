"""What the rules of a profile have to know of a machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from khop.loading.cores import usable_cores

CPU_FACTS = Path("/proc/cpuinfo")
_OF_CPUS = {"avx512_bf16", "amx_bf16", "bf16"}  # the last is ARM's


@dataclass(frozen=True)
class Machine:
    """What the rules have to know of where a run was carried out."""

    cores_per_rank: int
    has_fast_bfloat16: bool  # the device has instructions that multiply it


def this_machine(device: str, ranks_here: int) -> Machine:
    """As one of so many ranks finds it."""
    return Machine(max(1, usable_cores() // ranks_here), has_fast_bfloat16(device))


def has_fast_bfloat16(device: str, facts: Path = CPU_FACTS) -> bool:
    """Whether a device has instructions that multiply bfloat16; where nothing is known, no."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    try:
        lines = facts.read_text().splitlines()
    except OSError:
        return False
    flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return bool(_OF_CPUS & set(flags.split()))
