"""Ranks on two hosts that are network namespaces of this machine, for benchmarks. Needs root and iproute2."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import HERE, ROOT

sys.path.append(str(ROOT / "tests"))
from network.hosts import Host
from network.hosts import two_hosts as two_hosts

RANKS = 2  # one on each host
_LIMIT_S = 1800


def ranks(hosts: Sequence[Host], script: str, *arguments: str) -> list[Any]:
    """What `benchmarks/SCRIPT ARGUMENTS OUT` writes into the file OUT, as JSON, as a rank on each host."""
    with tempfile.TemporaryDirectory() as place:
        outs = [Path(place, f"{rank}.json") for rank in range(len(hosts))]
        running = [
            host.start(sys.executable, HERE / script, *arguments, out, environment=_environment(rank, hosts))
            for rank, (host, out) in enumerate(zip(hosts, outs, strict=True))
        ]
        for host, process in zip(hosts, running, strict=True):
            said, errors = process.communicate(timeout=_LIMIT_S)
            if process.returncode:
                raise RuntimeError(f"{host.name} ended with code {process.returncode}: {said}{errors}")
        return [json.loads(out.read_text()) for out in outs]


def _environment(rank: int, hosts: Sequence[Host]) -> dict[str, str]:
    """One rank on each host, as a launcher tells it."""
    placement = {
        "RANK": rank,
        "WORLD_SIZE": len(hosts),
        "LOCAL_RANK": 0,
        "LOCAL_WORLD_SIZE": 1,
        "MASTER_ADDR": hosts[0].name,
        "MASTER_PORT": 29500,
        "OMP_WAIT_POLICY": "passive",
        "PYTHONPATH": ROOT / "src",
    }
    return os.environ | {name: str(value) for name, value in placement.items()}
