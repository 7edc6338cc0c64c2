"""The environment of a run, in its folder: environment.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch

from khop.cli.run_folder import write_whole
from khop.config.values import RunConfig
from khop.loading.cores import usable_cores
from khop.profiling.machine import has_fast_bfloat16
from khop.reporting.environment import environment, peak_memory_bytes
from khop.reporting.run_summary import ENVIRONMENT
from khop.runtime.group import Group

Memory = Mapping[str, list[int]]  # name of a peak -> bytes of each rank


def write_environment(folder: Path, config: RunConfig, group: Group, memory: Memory | None = None) -> None:
    """Write versions, the machine of rank 0, and the processes; at the end also the peaks of memory."""
    device = torch.device(config.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    found = {
        **environment(name, usable_cores()),
        "fast_bfloat16": has_fast_bfloat16(config.device),
        "processes": group.world_size,
        "processes_here": group.local_world_size,
        **{peak: max(of_ranks) for peak, of_ranks in (memory or {}).items()},
    }
    write_whole(folder / ENVIRONMENT, (json.dumps(found, indent=1) + "\n").encode())


def memory_of_ranks(group: Group, device: torch.device) -> dict[str, list[int]]:
    """Return the most memory that each rank has had, and its GPU if it has one. Collective."""
    on_device = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    with group.exchanging("collecting the memory used"):
        found = group.gather(torch.tensor([peak_memory_bytes(), on_device]))
    peaks = {"peak_memory_bytes": found[:, 0].tolist()}
    return peaks | ({"peak_device_bytes": found[:, 1].tolist()} if on_device else {})
