"""How fast are tables imported, and in how much memory?

Generates Parquet files like those of a shop: events of 10 M users and 1 M items with a time and a price, ids
as text or as integers, popular users and items first. "csv" has the events with text ids in one csv.gz, at
most --csv-edges of them. `khop.import_tables` runs in a process of its own.
Edges per second are of wall time, and per second of CPU time of all threads, without the start of Python;
memory is the process's peak.
The first look-up reads the pages of 1,000 ids, the second finds them in memory.

--other SRC is the folder src of a checkout of another revision, whose core is built (scripts/build-inplace).
Both import the same files in turns, --rounds times; the ratios are this khop's time over the other's, the
medians over the rounds. "plain" has the events in one CSV file that is not compressed.

A virtual machine may return free memory to its host, and then each new page costs a fault of the host: 4
seconds for a gigabyte were seen, in place of 0.3. --fill BYTES fills the page cache first, so that memory is
used again.

usage: python benchmarks/importing.py [--edges 20000000] [--users 10000000] [--items 1000000] [--threads 2]
           [--memory 4294967296] [--csv-edges 10000000] [--kinds text,integers,csv,plain]
           [--fill 0] [--folder build/import-benchmark] [--other SRC] [--rounds 5]
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from harness import ROOT, Figure, report

import khop

EVENTS = {"csv": ["events.csv.gz"], "plain": ["events.csv"]}
FILE_EDGES, GROUP_EDGES = 5_000_000, 1_000_000
IMPORT = """
import json, resource, sys, time
import duckdb, pyarrow.parquet, torch, khop
khop.import_tables  # loads the modules of the import
settings = json.loads(sys.argv[1])
begun, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
khop.import_tables(settings["spec"], settings["out"], memory=settings["memory"], threads=settings["threads"])
seconds = time.perf_counter() - begun
usage = resource.getrusage(resource.RUSAGE_SELF)
cpu = usage.ru_utime + usage.ru_stime - used.ru_utime - used.ru_stime
peak = usage.ru_maxrss * 1024
print(json.dumps({"seconds": seconds, "cpu": cpu, "peak": peak}))
"""


def names(count: int, kind: str, prefix: str, random: np.random.Generator) -> pa.Array:
    """Ids with gaps, in no order."""
    numbers = pa.array(random.permutation(count).astype(np.int64) * 7 + 13)
    if kind == "integers":
        return numbers
    padded = pc.utf8_lpad(pc.cast(numbers, pa.string()), 9, "0")
    return pc.binary_join_element_wise(prefix, padded, "")


def generate(folder: Path, edges: int, counts: tuple[int, int], kind: str) -> None:
    """Write users, items and events."""
    random = np.random.default_rng(7)
    users, items = names(counts[0], kind, "u", random), names(counts[1], kind, "item-", random)
    (folder / "events").mkdir(parents=True)
    pq.write_table(pa.table({"user_id": users}), folder / "users.parquet")
    pq.write_table(pa.table({"item_id": items}), folder / "items.parquet")
    for number, first in enumerate(range(0, edges, FILE_EDGES)):
        count = min(FILE_EDGES, edges - first)
        sources = (counts[0] * random.random(count) ** 2.5).astype(np.int64)
        destinations = (counts[1] * random.random(count) ** 4).astype(np.int64)
        times = np.sort(random.integers(0, 86_400_000, count)) * 1000 + 1_600_000_000_000_000 + first
        events = {
            "user_id": users.take(pa.array(sources)),
            "item_id": items.take(pa.array(destinations)),
            "ts": pa.array(times).cast(pa.timestamp("us", "UTC")),
            "price": pa.array(random.lognormal(3, 1, count).round(2)),
        }
        file = folder / "events" / f"part-{number:04d}.parquet"
        pq.write_table(pa.table(events), file, row_group_size=GROUP_EDGES)


def pack_events(folder: Path, kind: str) -> None:
    """Write the events once more, into one csv.gz or csv."""
    path = folder / EVENTS[kind][0]
    with gzip.open(path, "wb", compresslevel=4) if kind == "csv" else path.open("wb") as out:
        for number, file in enumerate(sorted((folder / "events").glob("*.parquet"))):
            options = pa_csv.WriteOptions(include_header=number == 0, quoting_style="needed")
            pa_csv.write_csv(pq.read_table(file), out, options)


def spec_of(folder: Path, events: str = "events/*.parquet") -> dict[str, object]:
    """Return the spec of the generated files."""
    edges = {
        "files": [str(folder / events)],
        "source": "user_id",
        "destination": "item_id",
        "time": "ts",
        "columns": {"price": "number"},
    }
    return {
        "nodes": {
            "user": {"files": [str(folder / "users.parquet")], "id": "user_id"},
            "item": {"files": [str(folder / "items.parquet")], "id": "item_id"},
        },
        "edges": {"user buys item": edges},
    }


@contextmanager
def full_page_cache(folder: Path, size: int) -> Iterator[None]:
    """Keep the page cache full of a file that lies nowhere."""
    hole = folder / "hole"
    with hole.open("wb") as file:
        file.truncate(size)
    try:
        with hole.open("rb") as file:
            while file.read(1 << 24):
                pass
        yield
    finally:
        hole.unlink()


def prepared(kind: str, settings: argparse.Namespace) -> tuple[Path, int]:
    """Return the folder of the files, and the number of edges."""
    folder = settings.folder / kind
    edges = min(settings.edges, settings.csv_edges) if kind in EVENTS else settings.edges
    if not folder.exists():
        unfinished = settings.folder / f"{kind}.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        generate(unfinished, edges, (settings.users, settings.items), kind)
        if kind in EVENTS:
            pack_events(unfinished, kind)
        unfinished.rename(folder)
    return folder, edges


def imported(kind: str, folder: Path, settings: argparse.Namespace, source: Path) -> dict[str, float]:
    """Import one graph in a new process, by the khop of a folder src."""
    out = settings.folder / f"{kind}-graph"
    shutil.rmtree(out, ignore_errors=True)
    arguments = {
        "spec": spec_of(folder, *EVENTS.get(kind, [])),
        "out": str(out),
        "memory": settings.memory,
        "threads": settings.threads,
    }
    command = [sys.executable, "-c", IMPORT, json.dumps(arguments)]
    environment = {**os.environ, "PYTHONPATH": str(source.resolve()), "OMP_WAIT_POLICY": "passive"}
    with full_page_cache(settings.folder, settings.fill):
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


def compared(kind: str, settings: argparse.Namespace) -> list[Figure]:
    """Import the same files by this khop and by the other one, in turns."""
    folder, edges = prepared(kind, settings)
    load, found = os.getloadavg()[0], []
    for number in range(settings.rounds):
        sources = [settings.other, ROOT / "src"][:: 1 if number % 2 else -1]
        answers = {source: imported(kind, folder, settings, source) for source in sources}
        found.append((answers[ROOT / "src"], answers[settings.other]))
    shutil.rmtree(settings.folder / f"{kind}-graph")
    notes = {"edges": edges, "threads": settings.threads, "load": load, "rounds": settings.rounds}

    def ratio(name: str) -> float:
        return statistics.median(ours[name] / other[name] for ours, other in found)

    return [
        Figure(
            f"{kind}: {what} over the other's",
            statistics.median(a[name] / b[name] for a, b in found),
            "",
            notes=notes,
        )
        for name, what in (("seconds", "wall time"), ("cpu", "CPU time"))
    ]


def measured(kind: str, settings: argparse.Namespace) -> list[Figure]:
    """Import one graph, and look up ids in it."""
    folder, edges = prepared(kind, settings)
    out, load = settings.folder / f"{kind}-graph", os.getloadavg()[0]
    answer = imported(kind, folder, settings, ROOT / "src")
    lookup = look_up(out, folder)
    shutil.rmtree(out)
    notes = {"edges": edges, "threads": settings.threads, "load": load, "budget": settings.memory}
    notes |= {"page cache filled": settings.fill} if settings.fill else {}
    return [
        Figure(f"{kind}: edges per second", edges / answer["seconds"], "1/s", notes=notes),
        Figure(f"{kind}: edges per CPU second", edges / answer["cpu"], "1/s", notes=notes),
        Figure(f"{kind}: peak memory", answer["peak"], "bytes", notes=notes),
        Figure(f"{kind}: 1,000 ids of users looked up, warm", lookup, "ms", notes=notes),
    ]


def look_up(out: Path, folder: Path) -> float:
    """Return the milliseconds of the second look-up of 1,000 ids."""
    column = pq.read_table(folder / "users.parquet").column("user_id")
    step = max(1, len(column) // 1000)
    wanted = column.to_pylist()[::step][:1000]
    ids = khop.open_ids(out, "user")
    ids.rows(wanted)
    begun = time.perf_counter()
    found = ids.rows(wanted)
    milliseconds = 1000 * (time.perf_counter() - begun)
    assert found.tolist() == list(range(0, step * len(wanted), step))
    return milliseconds


def main() -> None:
    """Measure both kinds of ids, and CSV."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    defaults = {
        "edges": 20_000_000, "users": 10_000_000, "items": 1_000_000, "threads": 2, "memory": 4 << 30,
        "csv-edges": 10_000_000, "fill": 0,
    }  # fmt: skip
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "import-benchmark")
    parser.add_argument("--kinds", default="text,integers,csv")
    parser.add_argument("--other", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    settings = parser.parse_args()
    run = measured if settings.other is None else compared
    report("importing", [figure for kind in settings.kinds.split(",") for figure in run(kind, settings)])


if __name__ == "__main__":
    main()
