"""Folders of parts as machines have them: each with the files that it needs, and no others."""

from __future__ import annotations

import os
from pathlib import Path

from khop.distributed.placement import machine_files
from khop.graph.partitions.placements import Placement


def of_machine(parts: Path, placement: str, machine: int, machines: int) -> Path:
    """The folder of a machine with one process, beside that of all parts; made when it is first asked for."""
    out = parts.with_name(f"{parts.name}-{placement}-{machine}-of-{machines}")
    if not out.exists():
        for name in machine_files(parts, Placement(placement), machine, machines, procs=1):
            file = out / name
            file.parent.mkdir(parents=True, exist_ok=True)
            os.link(parts / name, file)
    return out
