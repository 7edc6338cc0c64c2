"""How fast are rows read from a graph folder that is larger than memory?

Writes a folder with one column of 128 float16 (256 bytes a row), then gathers random rows in processes whose
memory is limited by a control group (version 1 or 2, needs root). Without one, the file's pages are dropped
from the cache before each round. "before" reads the column as it was mapped until now, without advice.

`value` is rows/s, and bytes read from the disk for each row; `ratio` is khop over "before".

usage: python benchmarks/disk.py [--gigabytes 4] [--limit-gigabytes 1] [--rows 200000] [--rounds 3]
"""

from __future__ import annotations

import argparse
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
import torch
from harness import GRAPHS, Figure, report

import khop
from khop.features.store import Rows
from khop.features.table import FeatureTable
from khop.graph.feature_columns import feature_columns
from khop.graph.folder import open_folder

WIDTH = 128
BEFORE_ROWS = 200  # each took milliseconds
GROUPS = Path("/sys/fs/cgroup")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--limit-gigabytes", type=float, default=1.0)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measure", nargs=3, metavar=("FOLDER", "WAY", "SEED"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        folder, way, seed = given.measure
        print(
            json.dumps(measured(Path(folder), way, given.rows if way == "khop" else BEFORE_ROWS, int(seed)))
        )
        return
    folder = written(GRAPHS / "disk", int(given.gigabytes * 1e9) // (2 * WIDTH))
    answers: dict[str, list[dict[str, float]]] = {"khop": [], "before": []}
    with limited_memory(int(given.limit_gigabytes * 1e9)) as group:
        for number in range(given.rounds):
            for way, found in answers.items():
                found.append(in_process(folder, way, given.rows, number, group))
    notes = {
        "gigabytes": given.gigabytes,
        "limit": f"{given.limit_gigabytes} GB" if group else "none: cache dropped before each round",
        "rounds": given.rounds,
    }
    figures = []
    before = statistics.median(answer["rows_per_s"] for answer in answers["before"])
    for way, found in answers.items():
        speeds = [answer["rows_per_s"] for answer in found]
        ratio = statistics.median(speeds) / before if way == "khop" else None
        figures += [
            Figure(
                f"{way}: random rows of 256 bytes",
                round(statistics.median(speeds), 1),
                "rows/s",
                "before" if ratio else None,
                ratio,
                (min(speeds), max(speeds)),
                notes,
            ),
            Figure(
                f"{way}: read from the disk per row",
                round(statistics.median(answer["bytes_per_row"] for answer in found)),
                "bytes",
            ),
        ]
    report("disk", figures)


def written(path: Path, rows: int) -> Path:
    """The folder, with a column that no compression and no sparse file makes smaller."""
    if path.exists() and open_folder(path).num_nodes("node") == rows:
        return path
    shutil.rmtree(path, ignore_errors=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    column = np.memmap(path.with_suffix(".raw"), np.int16, "w+", shape=(rows, WIDTH))
    generator = np.random.default_rng(0)
    for start in range(0, rows, 1 << 18):
        piece = column[start : start + (1 << 18)]
        piece[:] = generator.integers(0, 30_000, piece.shape, np.int16)
    x = torch.from_numpy(column).view(torch.float16)
    khop.write_graph(path, {"node": khop.NodeTable(columns={"x": x})}, {})
    path.with_suffix(".raw").unlink()
    return path


def measured(path: Path, way: str, wanted: int, seed: int) -> dict[str, float]:
    """Gather random rows in this process, whose memory is limited."""
    folder = open_folder(path)
    file = path / "nodes" / "node" / "x.npy"
    drop_cache(file)
    table = FeatureTable(feature_columns(folder, 0) if way == "khop" else folder.columns())
    ids = torch.randint(folder.num_nodes("node"), (wanted,), generator=torch.Generator().manual_seed(seed))
    read_before, started = bytes_read(), time.perf_counter()
    for chunk in ids.split(50_000):
        table.gather({"node": Rows(chunk, ("x",))})
    seconds = time.perf_counter() - started
    return {"rows_per_s": wanted / seconds, "bytes_per_row": (bytes_read() - read_before) / wanted}


def drop_cache(file: Path) -> None:
    """Let the kernel forget the pages of a file."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def bytes_read() -> int:
    """Bytes that this process let the disk read so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def in_process(folder: Path, way: str, rows: int, seed: int, group: Path | None) -> dict[str, float]:
    """The answer of `measured` in a process of its own."""
    command = [sys.executable, __file__, "--rows", str(rows), "--measure", str(folder), way, str(seed)]

    def enter() -> None:
        if group is not None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    done = subprocess.run(command, check=True, capture_output=True, text=True, preexec_fn=enter)
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


@contextmanager
def limited_memory(limit_bytes: int) -> Iterator[Path | None]:
    """A control group of that much memory; None where it cannot be made."""
    version_1 = (GROUPS / "memory").is_dir()
    group = (GROUPS / "memory" if version_1 else GROUPS) / f"khop-benchmark-{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if version_1 else "memory.max")).write_text(str(limit_bytes))
    except OSError:
        yield None
        return
    try:
        yield group
    finally:
        group.rmdir()


if __name__ == "__main__":
    main()
