"""Precomputed propagation: `khop graph propagate` and torch.sparse, three hops of a graph's columns.

Both read the graph from disk, average the columns over in-neighbors three times, and write three columns.
The command also checks the graph before and computes checksums of what it writes. torch multiplies by a
matrix of its fastest format, CSR, and has all columns in memory. The two take turns, each in a new process;
times are CPU seconds of the process with its imports, and their ratio is the median over rounds. The peak of
memory is that of the whole process, with mapped files; the command has a limit.

usage: python benchmarks/propagate.py [--graph medium] [--rounds 3] [--memory 1GB]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

try:
    from benchmarks import graphs
except ImportError:  # run as a script
    import graphs  # type: ignore[no-redef]

HOPS = 3
TORCH = """
import sys
import numpy as np
import torch

source, out = sys.argv[1:]
names = ("indptr", "indices", "x")
indptr, indices, x = (torch.from_numpy(np.load(f"{source}/{name}.npy")) for name in names)
degrees = indptr.diff()
values = (1 / degrees.clamp(min=1)).float().repeat_interleave(degrees)
matrix = torch.sparse_csr_tensor(indptr, indices.long(), values, (len(degrees), len(degrees)))
for hop in range(1, 4):
    x = matrix @ x
    np.save(f"{out}/x_{hop}.npy", x.numpy())
"""
MEASURED = """
import json, resource, runpy, sys
program, *sys.argv = sys.argv[1:]
try:
    exec(program) if program else runpy.run_module("khop", run_name="__main__")
except SystemExit as end:
    assert not end.code, end
used = resource.getrusage(resource.RUSAGE_SELF)
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM:")).split()[1]
print(json.dumps({"cpu_s": used.ru_utime + used.ru_stime, "peak_bytes": int(peak) * 1024}))
"""


def measured(program: str, *arguments: object) -> dict[str, float]:
    """Run a program, or the command, in a new process: its CPU seconds, seconds and peak of memory."""
    begun = time.perf_counter()
    command = [sys.executable, "-W", "ignore", "-c", MEASURED, program, "khop", *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return {**json.loads(done.stdout.splitlines()[-1]), "seconds": time.perf_counter() - begun}


def main() -> None:
    """Measure both in turns and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graph", default="medium", choices=sorted(graphs.SPECS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", default="1GB")
    asked = parser.parse_args()
    source, rounds = graphs.make(asked.graph), []
    for _ in range(asked.rounds):
        with tempfile.TemporaryDirectory(dir=source) as folder:
            out = Path(folder) / "khop"
            options = ("--columns", "x", "--hops", HOPS, "--memory", asked.memory)
            ours = measured("", "graph", "propagate", source / "graph", out, *options)
            shutil.rmtree(out)
            theirs = measured(TORCH, source, folder)
        rounds.append({"khop": ours, "torch": theirs, "ratio": ours["cpu_s"] / theirs["cpu_s"]})
        print(json.dumps(rounds[-1]), file=sys.stderr)
    found = {
        "graph": asked.graph,
        "memory_limit": asked.memory,
        "load": os.getloadavg()[0],
        "cpu_ratio": statistics.median(each["ratio"] for each in rounds),
        "rounds": rounds,
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
