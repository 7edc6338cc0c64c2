"""The properties of a machine that the rules of a profile use."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from khop.loading.cores import usable_cores

CPU_FACTS = Path("/proc/cpuinfo")
_OF_CPUS = {"avx512_bf16", "amx_bf16", "bf16"}  # the last one is for ARM


@dataclass(frozen=True)
class Machine:
    """Properties of the machine of a run."""

    cores_per_rank: int
    has_fast_bfloat16: bool  # the device has instructions to multiply bfloat16


def this_machine(device: str, ranks_here: int) -> Machine:
    """Return the properties of this machine, shared by `ranks_here` ranks."""
    return Machine(max(1, usable_cores() // ranks_here), has_fast_bfloat16(device))


def has_fast_bfloat16(device: str, facts: Path = CPU_FACTS) -> bool:
    """Return whether a device has instructions to multiply bfloat16; False if unknown."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    try:
        lines = facts.read_text().splitlines()
    except OSError:
        return False
    flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return bool(_OF_CPUS & set(flags.split()))
