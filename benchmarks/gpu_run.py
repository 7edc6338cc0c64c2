"""How close to the limits of the memory does a GPU sample, gather, aggregate and train?

Stages, in this order: the machine's own limits; sampling and captured steps while torch refuses each call
that waits; sampling and numbering of [15, 10, 5] with 1,024 seeds (eager, and as a CUDA graph); gathering
from device and pinned memory; aggregation; captured training steps; loading by the CPU with training on the
GPU; epochs of the trainer; the first batch with an empty cache of kernels; an epoch beside PyG's
NeighborLoader and GraphSAGE, where its samplers are installed.

Each stage is a process of its own with a time limit; a figure is kept as soon as it is known, and the JSON is
written after each stage. All stages together end within 7 minutes. Batches are compared with the CPU's first.
Times are medians of events on the device; kernels run ten times in a CUDA graph, so that launches cost
nothing. `peer` is the limit that `ratio` is taken of; notes of a kernel have the bytes that it moves.

usage: python benchmarks/gpu.py [--stages limits,sampling,...] [--nodes 2449029] [--seconds 380]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from harness import HERE, Figure, report

from khop.loading.device.streams import gpu_remedy

NODES = 2_449_029
IN_ALL_S = 380.0
LEAST_S = 5.0  # a stage does not begin with less

LIMITS_S: Mapping[str, float] = {  # of each stage; their order
    "limits": 45,
    "waits": 60,
    "sampling": 60,
    "gather": 60,
    "aggregation": 45,
    "training": 120,
    "loading": 90,
    "command": 60,
    "first": 120,
    "pyg": 120,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--stages", default=",".join(LIMITS_S))
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--seconds", type=float, default=IN_ALL_S)
    options = parser.parse_args(arguments)
    stages = options.stages.split(",")
    if unknown := [stage for stage in stages if stage not in LIMITS_S]:
        sys.exit(f"stages {','.join(unknown)}: must be among {','.join(LIMITS_S)}")
    if not torch.cuda.is_available():
        sys.exit(f"benchmarks/gpu.py needs a GPU: {gpu_remedy()}")
    command = [sys.executable, str(HERE / "gpu_stages.py"), "--nodes", str(options.nodes)]
    failed = run_stages(command, stages, options.seconds)
    if failed:
        sys.exit("\n".join(failed))


def run_stages(command: Sequence[str], stages: Sequence[str], seconds: float) -> list[str]:
    """Run each stage within its limit, and keep all figures after each; return a line per failure.

    A stage is the command with its name and the file to append figures to. The next one reads it too.
    """
    failed, began = [], time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "figures.jsonl"
        kept.touch()
        for stage in stages:
            begun = time.monotonic()
            limit = min(LIMITS_S[stage], seconds - (begun - began))
            failure = run_stage([*command, stage, str(kept)], limit)
            if failure is not None:
                failed.append(f"{stage}: {failure}")
                print(failed[-1], file=sys.stderr)
            spent = Figure(f"stage {stage}", round(time.monotonic() - begun, 4), "s", notes=_note(failure))
            append(kept, spent)
            report("gpu", figures_of(kept))
    return failed


def run_stage(command: Sequence[str], limit_s: float) -> str | None:
    """Run one stage; return the reason if it failed. A stage that is stopped ends with its own processes."""
    if limit_s < LEAST_S:
        return "left out: no time was left"
    process = subprocess.Popen(command, start_new_session=True)
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return f"stopped after {limit_s:.0f} s"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return None if code == 0 else f"ended with code {code}"


def append(kept: Path, figure: Figure) -> None:
    """Add a figure to a file of one JSON object per line. The line before may be unfinished."""
    with kept.open("a") as file:
        file.write("\n" + json.dumps(vars(figure)) + "\n")


def figures_of(kept: Path) -> list[Figure]:
    """Return the figures of such a file. A line that a stopped stage left unfinished is left out."""
    figures = []
    for line in kept.read_text().splitlines():
        try:
            figures.append(Figure(**json.loads(line)))
        except json.JSONDecodeError:
            continue
    return figures


def _note(failure: str | None) -> dict[str, str]:
    return {} if failure is None else {"failed": failure}
