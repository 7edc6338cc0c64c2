"""One stage of gpu.py, in a process of its own; see there.

usage: python benchmarks/gpu_stages.py [--nodes 2449029] STAGE FIGURES
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import gpu_epochs
import gpu_kernels
import gpu_run
import gpu_training
from gpu_bench import Bench

STAGES: dict[str, Callable[[Bench], None]] = {
    "limits": gpu_kernels.limits,
    "waits": gpu_training.waits,
    "sampling": gpu_kernels.sampling,
    "gather": gpu_kernels.gather,
    "aggregation": gpu_kernels.aggregation,
    "training": gpu_training.training,
    "loading": gpu_epochs.loading,
    "command": gpu_epochs.command,
    "first": gpu_epochs.first,
    "pyg": gpu_epochs.pyg,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", type=int, default=gpu_run.NODES)
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("figures", type=Path)
    options = parser.parse_args(arguments)
    STAGES[options.stage](Bench(options.nodes, options.figures))


if __name__ == "__main__":
    main()
