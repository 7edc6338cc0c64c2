"""Precomputed propagation: `khop graph propagate` and torch.sparse, three hops of a graph's columns.

Both read the graph from disk, average the columns over in-neighbors three times, and write three columns.
The command also checks the graph before and computes checksums of what it writes. torch multiplies by a
matrix of its fastest format, CSR, and has all columns in memory. The two take turns, each in a new process;
times are CPU seconds of the process with its imports, and their ratio is the median over rounds. Bytecode is
cached before by a small call, as an installation has it. The peak of memory is that of the whole process,
with mapped files; the command has a limit.

The shares of memory and disk are the bytes that the three hops need, over the seconds of the whole command,
divided by the bandwidth of a copy in memory with all threads, and of a synchronized write to the same disk.
In memory, a hop reads the row and the id of each edge's source and writes a row per node; to the disk, each
column is written once.

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
import timeit
from pathlib import Path
from typing import Any

import numpy as np
import torch

try:
    from benchmarks import graphs
    from benchmarks.harness import Figure, quartiles, report
except ImportError:  # run as a script
    import graphs  # type: ignore[no-redef]
    from harness import Figure, quartiles, report  # type: ignore[no-redef]

HOPS = 3
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
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
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=ENVIRONMENT)
    return {**json.loads(done.stdout.splitlines()[-1]), "seconds": time.perf_counter() - begun}


def copy_bandwidth(size: int = 1 << 28) -> float:
    """Bytes per second that a copy in memory reads and writes, the best of five."""
    source, target = torch.ones(2, size // 4)
    return 2 * size / min(timeit.repeat(lambda: target.copy_(source), number=1, repeat=5))


def write_bandwidth(folder: Path, size: int = 1 << 28) -> float:
    """Bytes per second of a synchronized sequential write, the best of three."""

    def write() -> None:
        with (folder / "written").open("wb") as file:
            file.write(content)
            os.fsync(file.fileno())

    content = bytes(size)
    return size / min(timeit.repeat(write, number=1, repeat=3))


def needed_bytes(source: Path) -> tuple[int, int]:
    """Bytes that the hops move in memory, and write to the disk."""
    x, indices = (np.load(source / f"{name}.npy", mmap_mode="r") for name in ("x", "indices"))
    of_edges = len(indices) * (x[:1].nbytes + np.dtype(np.int32).itemsize)
    return HOPS * (of_edges + x.nbytes), HOPS * x.nbytes


def main() -> None:
    """Measure both in turns and record the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graph", default="medium", choices=sorted(graphs.SPECS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", default="1GB")
    asked = parser.parse_args()
    source, rounds = graphs.make(asked.graph), []
    options = ("--columns", "x", "--hops", HOPS, "--memory", asked.memory)
    with tempfile.TemporaryDirectory(dir=source) as folder:
        measured("", "graph", "propagate", graphs.make("tiny") / "graph", Path(folder) / "small", *options)
    for _ in range(asked.rounds):
        with tempfile.TemporaryDirectory(dir=source) as folder:
            out = Path(folder) / "khop"
            ours = measured("", "graph", "propagate", source / "graph", out, *options)
            shutil.rmtree(out)
            theirs = measured(TORCH, source, folder)
            limits = copy_bandwidth(), write_bandwidth(Path(folder))
        shares = [
            size / ours["seconds"] / limit for size, limit in zip(needed_bytes(source), limits, strict=True)
        ]
        rounds.append({"khop": ours, "torch": theirs, "memory": shares[0], "disk": shares[1]})
        print(json.dumps(rounds[-1]), file=sys.stderr)
    report("propagate", figures(rounds, {"graph": asked.graph, "load": round(os.getloadavg()[0], 1)}))


def figures(rounds: list[dict[str, Any]], notes: dict[str, Any]) -> list[Figure]:
    """Medians over rounds; the ratio of times is the median of the rounds' ratios."""
    found = []
    for key, unit in (("cpu_s", "s"), ("seconds", "s"), ("peak_bytes", "bytes")):
        what = {"cpu_s": "CPU time", "seconds": "time", "peak_bytes": "peak of memory"}[key]
        ours, theirs = ([each[name][key] for each in rounds] for name in ("khop", "torch"))
        ratio = statistics.median(their / our for our, their in zip(ours, theirs, strict=True))
        for name, values in ((None, ours), ("torch.sparse", theirs)):
            figure = f"propagating 3 hops, {what}" + (f" ({name})" if name else "")
            of_peer = round(ratio, 3) if name else None
            found.append(
                Figure(
                    figure, round(statistics.median(values), 2), unit, name, of_peer, quartiles(values), notes
                )
            )
    for limit in ("memory", "disk"):
        value = round(statistics.median(each[limit] for each in rounds), 3)
        found.append(Figure(f"propagating 3 hops, share of the bandwidth of {limit}", value, "ratio"))
    return found


if __name__ == "__main__":
    main()
