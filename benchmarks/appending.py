"""What does an append cost, beside an import of all rows?

Generates a shop as benchmarks/importing.py does, and a day of 1 % more: events of the same users and items,
later than all others, and 1 % new users. Each import and append runs in a process of its own. CPU seconds
count all threads. Then batches are sampled from the snapshot, and from the graph after `khop.compact`, five
times each.

usage: python benchmarks/appending.py [--edges 20000000] [--users 2000000] [--items 200000] [--threads 2]
           [--memory 4294967296] [--folder build/append-benchmark]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from harness import ROOT, Figure, report

import khop
from data.tables import generate, spec_of

SHARE = 100  # edges of the graph for each new one
WORK = """
import json, resource, sys, time
from khop.process_tuning import tune_before_torch
tune_before_torch()  # as the command does
import duckdb, pyarrow.parquet, torch, khop, khop.data.tables.append
settings = json.loads(sys.argv[1])
budget = {"threads": settings["threads"], "memory": settings["memory"]}
if settings["encoders"]:
    call = lambda: khop.append(settings["out"], settings["spec"], **budget)
else:
    call = lambda: khop.import_tables(settings["spec"], settings["out"], **budget)
begun, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
call()
usage = resource.getrusage(resource.RUSAGE_SELF)
cpu = usage.ru_utime + usage.ru_stime - used.ru_utime - used.ru_stime
print(json.dumps({"seconds": time.perf_counter() - begun, "cpu": cpu, "peak": usage.ru_maxrss * 1024}))
"""

SAMPLING = """
import sys, time, khop
graph = khop.open_graph(sys.argv[1])
sampler = khop.NeighborSampler(graph, [15, 10])
loader = khop.Loader(sampler, {"item": "all"}, 1024, shuffle=True, threads=1, prefetch=1)
begun = 0.0
for step, batch in zip(range(120), loader):
    if step == 19:
        begun = time.process_time()
print(time.process_time() - begun)
"""
ROUNDS = 5


def generate_day(folder: Path, day: Path, edges: int, users: int) -> None:
    """Write new users, and events of old and new ones."""
    random = np.random.default_rng(11)
    new = pa.array([f"new-{number:09d}" for number in range(users)])
    known = pq.read_table(folder / "users.parquet")["user_id"].combine_chunks()
    items = pq.read_table(folder / "items.parquet")["item_id"].combine_chunks()
    sources = pa.concat_arrays([new, known])
    picked = (len(sources) * random.random(edges) ** 2.5).astype(np.int64)
    bought = (len(items) * random.random(edges) ** 4).astype(np.int64)
    times = np.sort(random.integers(0, 86_400_000, edges)) * 1000 + 1_700_000_000_000_000
    events = {
        "user_id": sources.take(pa.array(picked)),
        "item_id": items.take(pa.array(bought)),
        "ts": pa.array(times).cast(pa.timestamp("us", "UTC")),
        "price": pa.array(random.lognormal(3, 1, edges).round(2)),
    }
    (day / "events").mkdir(parents=True)
    pq.write_table(pa.table({"user_id": new}), day / "users.parquet")
    pq.write_table(pa.table(events), day / "events" / "part-0000.parquet")


def day_spec(day: Path) -> dict[str, object]:
    """Return the spec of the new rows."""
    edges = {"files": [str(day / "events/*.parquet")], "source": "user_id", "destination": "item_id"}
    users = {"files": [str(day / "users.parquet")], "id": "user_id"}
    return {"nodes": {"user": users, "item": {}}, "edges": {"user buys item": edges}}


def measured(
    spec: dict[str, object], out: Path, is_append: bool, settings: argparse.Namespace
) -> dict[str, float]:
    """Import or append in a new process."""
    arguments = {
        "spec": spec, "out": str(out), "encoders": is_append, "threads": settings.threads,
        "memory": settings.memory,
    }  # fmt: skip
    load = os.getloadavg()[0]
    done = subprocess.run(
        [sys.executable, "-c", WORK, json.dumps(arguments)], check=True, capture_output=True, text=True
    )
    return {**json.loads(done.stdout.splitlines()[-1]), "load": load}


def sampled(graph: Path) -> float:
    """Return the least CPU seconds of 100 batches, in processes of their own."""
    command = [sys.executable, "-c", SAMPLING, str(graph)]
    runs = [subprocess.run(command, check=True, capture_output=True, text=True) for _ in range(ROUNDS)]
    return min(float(done.stdout) for done in runs)


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--edges", type=int, default=20_000_000)
    parser.add_argument("--users", type=int, default=2_000_000)
    parser.add_argument("--items", type=int, default=200_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory", type=int, default=4 << 30)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "append-benchmark")
    settings = parser.parse_args()
    folder, day, out = settings.folder / "tables", settings.folder / "day", settings.folder / "graph"
    shutil.rmtree(settings.folder, ignore_errors=True)
    generate(folder, settings.edges, (settings.users, settings.items), "text")
    generate_day(folder, day, settings.edges // SHARE, settings.users // SHARE)
    rebuild = measured(spec_of(folder), out, False, settings)
    append = measured(day_spec(day), out, True, settings)
    on_snapshot = sampled(out)
    khop.compact(out)
    on_compacted = sampled(out)
    notes = {
        "edges": settings.edges, "users": settings.users, "threads": settings.threads,
        "load": f"{rebuild['load']:.1f}, {append['load']:.1f}",
    }  # fmt: skip
    shutil.rmtree(settings.folder)
    report(
        "appending",
        [
            Figure("import", rebuild["seconds"], "s", notes=notes),
            Figure("import: CPU", rebuild["cpu"], "s", notes=notes),
            Figure("append of 1 %", append["seconds"], "s", notes=notes),
            Figure("append of 1 %: CPU", append["cpu"], "s", notes=notes),
            Figure("append of 1 %, over the import", append["seconds"] / rebuild["seconds"], "", notes=notes),
            Figure("append of 1 %, over the import, CPU", append["cpu"] / rebuild["cpu"], "", notes=notes),
            Figure("append of 1 %: peak memory", append["peak"], "bytes", notes=notes),
            Figure("sampling on the snapshot, over compacted", on_snapshot / on_compacted, "", notes=notes),
        ],
    )


if __name__ == "__main__":
    main()
