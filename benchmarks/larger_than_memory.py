"""How fast is a graph sampled, gathered and trained on whose columns are larger than memory?

Writes a folder in chunks: nodes with 128 float16 each (256 bytes a row) and random edges. The size follows
from the free disk, of which --leave-gigabytes stay free, unless it is given. Every figure is measured in a
process of its own, whose memory is limited by a control group (version 1 or 2, needs root); without one, by
nothing. The file's pages are dropped from the cache before each cold figure.

Then builds graphs of --edges without columns, in a budget of 768 MB, and samples them. `khop info` and LDG
are measured on the largest one. The CPU time of a build is less that of the generator of the edges.

Beside the cold gather stands the limit of the disk: random reads of aligned 4-KiB pages of the same file, the
better of one thread that announces 256 reads ahead and 32 threads that read directly (O_DIRECT). "no advice"
reads the column as a plain mapping.

usage: python benchmarks/larger_than_memory.py [--nodes N] [--degree 10] [--limit-gigabytes G]
       [--leave-gigabytes 30] [--cache-gigabytes 0.5] [--rows 200000] [--steps 20] [--edges 1e6,1e7,1e8]
"""

# ruff: noqa: E402  # the process is tuned before torch is imported

from __future__ import annotations

import argparse
import json
import mmap
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import khop
from khop.process_tuning import tune_before_torch

tune_before_torch()  # as the command does

import torch
from harness import GRAPHS, Figure, report

from khop.cli.arguments import read_run, write_config
from khop.graph.features.store import FeatureStore, Rows
from khop.graph.features.table import FeatureTable
from khop.graph.folder import GraphFolder, open_folder
from khop.loading.device.device_placement import StorePlace
from khop.loading.device.placed_stores import folder_features
from khop.run.check import checked
from khop.run.planning.graph_size import graph_size
from khop.run.planning.prediction import MEASURED, from_disk
from khop.run.planning.workload import Cluster, PlannedRun

WIDTH, ROW_BYTES, PAGE = 128, 256, 4096
UNADVISED_ROWS = 200  # each takes milliseconds
CHUNK = 1 << 18
FANOUTS, BATCH = [15, 10, 5], 1024
GROUPS = Path("/sys/fs/cgroup")
X = "nodes/node/x.npy"
GB = 10**9


def main() -> None:
    given = arguments()
    if given.measure:
        way, folder, *values = given.measure
        print(json.dumps(MEASURES[way](Path(folder), *(float(value) for value in values))))
        return
    GRAPHS.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(GRAPHS).free
    # The column exists twice while it is written, and edges as runs and as sorted.
    each = 2 * ROW_BYTES + 20 * given.degree + 24
    nodes = given.nodes or max(1, int(free - given.leave_gigabytes * GB) // each)
    size = nodes * (ROW_BYTES + 4 * given.degree + 8) / GB
    print(f"{free / GB:.0f} GB of disk are free: {nodes:,} nodes, {size:.1f} GB", file=sys.stderr)
    graph = written(GRAPHS / "larger", nodes, given.degree)
    limit = given.limit_gigabytes or nodes * ROW_BYTES / 1.2 / GB
    notes = {"nodes": nodes, "edges": nodes * given.degree, "limit_gb": round(limit, 2)}
    with limited_memory(int(limit * GB)) as group:
        if group is None:
            notes["limit_gb"] = 0.0
        run = Runner(group, {**notes, "load_before": os.getloadavg()[0]})
        figures = cold_figures(run, graph, given.rows)
        figures += batch_figures(run, graph, given)
    shutil.rmtree(graph)
    figures += edge_figures(Runner(None, notes), [int(float(n)) for n in given.edges.split(",") if n])
    report("larger_than_memory", figures)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=0)
    parser.add_argument("--degree", type=int, default=10)
    parser.add_argument("--limit-gigabytes", type=float, default=0.0)
    parser.add_argument("--leave-gigabytes", type=float, default=30.0)
    parser.add_argument("--cache-gigabytes", type=float, default=0.5)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--edges", default="1e6,1e7,1e8")
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    return parser.parse_args()


@dataclass(frozen=True)
class Runner:
    """Processes whose memory is limited by a control group."""

    group: Path | None
    notes: dict[str, Any]

    def answer(self, way: str, folder: Path, *values: float) -> dict[str, float]:
        """Return the answer of one of MEASURES."""
        command = [sys.executable, __file__, "--measure", way, str(folder), *map(str, values)]

        def enter() -> None:
            if self.group is not None:
                (self.group / "cgroup.procs").write_text(str(os.getpid()))

        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, preexec_fn=enter)
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        print(way, found, file=sys.stderr)
        return found

    def figure(
        self, name: str, value: float, unit: str, peer: str | None = None, ratio: float | None = None
    ) -> Figure:
        """Return a figure with the notes and the load of the machine."""
        load = {"load": round(os.getloadavg()[0], 1)}
        return Figure(
            name, round(value, 4), unit, peer, ratio and round(ratio, 3), notes={**self.notes, **load}
        )


def cold_figures(run: Runner, graph: Path, rows: int) -> list[Figure]:
    """Rows gathered from a cold file, over the limit of the disk; rounds alternate."""
    ways = ("limit", "disk", "mapped", "limit", "disk", "mapped", "no_advice")
    found: dict[str, list[dict[str, float]]] = {}
    for number, way in enumerate(ways):
        found.setdefault(way, []).append(run.answer(way, graph, rows, number))
    best = {way: max(answers, key=lambda answer: answer["per_s"]) for way, answers in found.items()}
    limit = best["limit"]["per_s"]
    figures = [run.figure("limit of the disk: random 4-KiB reads", limit, "reads/s")]
    for way, answer in best.items():
        if way != "limit":
            name = way.replace("_", " ")
            figures += [
                run.figure(
                    f"{name}: cold rows of 256 bytes",
                    answer["per_s"],
                    "rows/s",
                    "disk",
                    answer["per_s"] / limit,
                ),
                run.figure(f"{name}: read from the disk per row", answer["bytes_per_row"], "bytes"),
            ]
    return figures


def batch_figures(run: Runner, graph: Path, given: argparse.Namespace) -> list[Figure]:
    """The first batch and steps of training, with features on disk."""
    limit = run.answer("limit", graph, given.rows, 99)["per_s"]
    first = run.answer("first_batch", graph)
    steady = run.answer("steady", graph, given.cache_gigabytes * GB, given.steps)
    at_limit = steady["rows_read_per_step"] / limit
    planned = run.answer("planned", graph, limit)
    inferring, line = run.answer("inferring", graph), run.answer("first_line", graph)
    return [
        run.figure(
            "nodes of a batch as planned",
            planned["nodes"],
            "nodes",
            "counted",
            planned["nodes"] / first["nodes"],
        ),
        run.figure(
            "first batch as planned", planned["cold"], "s", "measured", planned["cold"] / first["seconds"]
        ),
        run.figure("first line of khop infer, from the start of the process", line["seconds"], "s"),
        run.figure("first rows of an inference", inferring["seconds"], "s"),
        run.figure("first batch [15,10,5], topology cached, features cold", first["seconds"], "s"),
        run.figure("nodes of the first batch", first["nodes"], "nodes"),
        run.figure(
            f"training with a cache of {given.cache_gigabytes:g} GB",
            steady["seconds_per_step"],
            "s/step",
            "reads at the limit of the disk",
            steady["seconds_per_step"] / at_limit,
        ),
        run.figure("training: share of rows in the cache", steady["hit_rate"], "of rows"),
        run.figure("training: seconds to plan and fill the cache", steady["cache_seconds"], "s"),
        run.figure("training: peak of anonymous memory", steady["peak_anonymous"] / GB, "GB"),
    ]


def edge_figures(run: Runner, sizes: list[int]) -> list[Figure]:
    """Building and sampling graphs of growing size."""
    figures = []
    for edges in sizes:
        folder, name = GRAPHS / f"edges-{edges}", f"graph of {edges:.1e} edges"
        shutil.rmtree(folder, ignore_errors=True)
        built = run.answer("build", folder, edges)
        found = run.answer("sampling", folder)
        figures += [
            run.figure(f"build, {name}", edges / built["seconds"], "edges/s"),
            run.figure(f"build, {name}: CPU time", built["cpu"] * 1e9 / edges, "ns/edge"),
            run.figure(f"build, {name}: peak of anonymous memory", built["peak"] / GB, "GB"),
            run.figure(f"sampling {FANOUTS}, {name}", found["ns_per_edge"], "ns/edge"),
            run.figure(f"sampling {FANOUTS}, {name}: CPU time", found["cpu_ns_per_edge"], "ns/edge"),
        ]
        if edges == max(sizes):
            info, ldg = run.answer("info", folder), run.answer("ldg", folder)
            figures += [
                run.figure(f"khop info, {name}: resident memory", info["peak"] / GB, "GB"),
                run.figure(f"khop info, {name}", info["seconds"], "s"),
                run.figure(f"LDG, 4 parts, {name}", ldg["seconds"], "s"),
                run.figure(f"khop partition, 4 parts, {name}", ldg["all"], "s"),
                run.figure(f"khop partition, {name}: peak of anonymous memory", ldg["peak"] / GB, "GB"),
            ]
        shutil.rmtree(folder)
    return figures


def random_edges(nodes: int, edges: int) -> Iterator[khop.EdgeTable]:
    """Yield edges between uniformly drawn nodes."""
    generator = np.random.default_rng(0)
    for start in range(0, edges, 1 << 22):
        count = min(1 << 22, edges - start)
        ends = generator.integers(0, nodes, (2, count), np.int32 if nodes <= 1 << 31 else np.int64)
        yield khop.EdgeTable(ends[0], ends[1])


def written(path: Path, nodes: int, degree: int) -> Path:
    """Write the folder, with a column that no compression and no sparse file makes smaller."""
    if path.exists() and open_folder(path).num_nodes("node") == nodes:
        return path
    shutil.rmtree(path, ignore_errors=True)
    raw = path.with_suffix(".raw")
    column = np.memmap(raw, np.int16, "w+", shape=(nodes, WIDTH))
    generator = np.random.default_rng(0)
    for start in range(0, nodes, CHUNK):
        piece = column[start : start + CHUNK]
        piece[:] = generator.integers(0, 15_000, piece.shape, np.int16)
    x = torch.from_numpy(column).view(torch.float16)
    labels = torch.from_numpy(generator.integers(0, 100, nodes))
    chosen = generator.choice(nodes, nodes // 90 + 200, replace=False)
    splits = dict(zip(("val", "test", "train"), np.split(chosen, (100, 200)), strict=True))
    table = khop.NodeTable(
        columns={"x": x, "y": labels},
        splits={name: np.sort(ids) for name, ids in splits.items()},
        num_classes={"y": 100},
    )
    started = time.perf_counter()
    khop.write_graph(
        path, {"node": table}, {"node to node": khop.EdgeChunks(random_edges(nodes, nodes * degree))}
    )
    print(f"written in {time.perf_counter() - started:.0f} s", file=sys.stderr)
    del x, column, table
    raw.unlink()
    return path


def of_disk(folder: GraphFolder) -> FeatureStore:
    return folder_features(folder, {"x": StorePlace.DISK})


def of_mapping(folder: GraphFolder) -> FeatureStore:
    return folder_features(folder, {"x": StorePlace.MAPPED}, room_bytes=0)


def unadvised(folder: GraphFolder) -> FeatureStore:
    return FeatureTable(folder.columns())


def gathering(store: Callable[[GraphFolder], FeatureStore], most: int | None = None) -> Callable[..., Any]:
    """Return a measure of cold gathers of random rows."""

    def measure(path: Path, rows: float, seed: float) -> dict[str, float]:
        folder = open_folder(path)
        drop_cache(path / X)
        table, wanted = store(folder), min(int(rows), most or int(rows))
        ids = torch.randint(
            folder.num_nodes("node"), (wanted,), generator=torch.Generator().manual_seed(int(seed))
        )
        read_before, started = bytes_read(), time.perf_counter()
        for chunk in ids.split(50_000):
            table.gather({"node": Rows(chunk, ("x",))})
        seconds = time.perf_counter() - started
        return {"per_s": wanted / seconds, "bytes_per_row": (bytes_read() - read_before) / wanted}

    return measure


def limit_of_disk(path: Path, reads: float, seed: float) -> dict[str, float]:
    """Read random pages of the file, by announcements and by threads that go past the cache."""
    file = path / X
    there = file.stat().st_size // PAGE
    count = min(int(reads), there)
    pages = np.random.default_rng(int(seed)).choice(there, count, replace=False)
    rates = []
    for read, order in ((announced_reads, np.sort(pages[: count // 2])), (direct_reads, pages[count // 2 :])):
        drop_cache(file)
        started = time.perf_counter()
        read(file, (order * PAGE).tolist())
        rates.append(len(order) / (time.perf_counter() - started))
    return {"per_s": max(rates), "announced_per_s": rates[0], "direct_per_s": rates[1]}


def announced_reads(file: Path, offsets: list[int]) -> None:
    with file.open("rb", buffering=0) as opened:
        descriptor = opened.fileno()
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        for at, offset in enumerate(offsets[:-256]):
            os.posix_fadvise(descriptor, offsets[at + 256], PAGE, os.POSIX_FADV_WILLNEED)
            os.pread(descriptor, PAGE, offset)


def direct_reads(file: Path, offsets: list[int]) -> None:
    descriptor = os.open(file, os.O_RDONLY | os.O_DIRECT)

    def read(share: list[int]) -> None:
        room = mmap.mmap(-1, PAGE)
        for offset in share:
            os.preadv(descriptor, [room], offset)

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(read, [offsets[number::32] for number in range(32)]))
    os.close(descriptor)


def placed(path: Path) -> khop.Graph:
    return khop.open_graph(path).on("cpu", columns={"x": "disk"})


def loader_of(graph: khop.Graph, threads: int | None = None) -> khop.Loader:
    return khop.Loader(
        khop.NeighborSampler(graph, FANOUTS),
        graph.split("train"),
        BATCH,
        shuffle=True,
        columns=["x"],
        seed_columns=["y"],
        threads=threads,
    )


def warm_edges(path: Path) -> None:
    for name in ("indptr", "indices"):
        file = next((path / "edges").glob(f"*/{name}.npy"))
        with file.open("rb") as opened:
            while opened.read(1 << 24):
                pass


def first_batch(path: Path) -> dict[str, float]:
    warm_edges(path)
    drop_cache(path / X)
    loader = loader_of(placed(path))
    started = time.perf_counter()
    batches = iter(loader)
    batch = next(batches)
    seconds = time.perf_counter() - started  # before `batches` is dropped, which waits for the next ones
    return {"seconds": seconds, "nodes": float(batch.sample.nodes["node"].numel())}


def steady(path: Path, cache_bytes: float, steps: float) -> dict[str, float]:
    """Train over batches with a cache that is planned by need; the first steps do not count."""
    warm_edges(path)
    graph = placed(path)
    loader = loader_of(graph)
    started = time.perf_counter()
    loader.cache_features(int(cache_bytes))
    cache_seconds = time.perf_counter() - started
    model = khop.models.SAGE.for_graph(graph, hidden=64, layers=len(FANOUTS), label="y")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    drop_cache(path / X)
    cached = loader._local.features.cache
    count, nodes, hits, seconds = int(steps), 0, 0, 0.0
    started = time.perf_counter()
    for step, batch in zip(range(count + 4), loader, strict=False):
        loss = torch.nn.functional.cross_entropy(model(batch), batch.seed_column("y"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step < 4:
            started = time.perf_counter()
            continue
        seconds = time.perf_counter() - started
        ids = batch.sample.nodes["node"]
        nodes += ids.numel()
        hits += int((cached.find("node", ids) >= 0).sum())
    return {
        "seconds_per_step": seconds / count,
        "rows_read_per_step": (nodes - hits) / count,
        "hit_rate": hits / max(nodes, 1),
        "cache_seconds": cache_seconds,
        "peak_anonymous": float(peak_anonymous()),
    }


def planned(path: Path, reads_per_s: float) -> dict[str, float]:
    """Plan a batch of the graph that exists, as `khop plan` does, on a disk with these reads per second."""
    cluster = Cluster(machines=1, cores=2, network_gbit=10, latency_s=1e-4, cache_share=0.0)
    constants = replace(MEASURED, disk_reads_per_s=reads_per_s)
    found = from_disk(graph_size(path, FANOUTS), PlannedRun(tuple(FANOUTS), BATCH), cluster, constants, 1e15)
    assert found is not None, "there is memory for the edges"
    return {"nodes": found.nodes, "cold": found.cold}


def first_line(path: Path) -> dict[str, float]:
    """Return the seconds from the start of `khop infer` to the first line on its stderr, with cold features.

    The model is trained on a small graph with the same columns: training on this one takes hours.
    """
    small, run = (path.with_name(f"{path.name}-{name}") for name in ("small", "run"))
    for folder in (small, run):
        shutil.rmtree(folder, ignore_errors=True)
    table = khop.NodeTable(
        columns={"x": torch.zeros(1000, WIDTH, dtype=torch.float16), "y": torch.arange(1000) % 100},
        splits={"train": np.arange(500), "val": np.arange(500, 700), "test": np.arange(700, 900)},
        num_classes={"y": 100},
    )
    khop.write_graph(small, {"node": table}, {"node to node": khop.EdgeChunks(random_edges(1000, 5000))})
    khop_command = [sys.executable, "-m", "khop"]
    words = ["train", "--graph", str(small), "--hidden", "64", "--fanouts", "10,5", "--features", "disk"]
    words += ["--epochs", "1", "--out", str(run)]
    subprocess.run([*khop_command, *words], check=True, stdout=subprocess.DEVNULL)
    write_config(run, checked(read_run(run)).model_copy(update={"graph": str(path)}))
    warm_edges(path)
    drop_cache(path / X)
    out, started = path.with_name("inferred.npy"), time.perf_counter()
    infer = [*khop_command, "infer", str(run), "--out", str(out)]
    with subprocess.Popen(infer, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line, seconds = process.stderr.readline(), time.perf_counter() - started
        process.terminate()
    print(f"first line: {line.strip()}", file=sys.stderr)
    for folder in (small, run, out.with_name(out.name + ".unfinished")):
        shutil.rmtree(folder, ignore_errors=True)
    return {"seconds": seconds}


def inferring(path: Path) -> dict[str, float]:
    """Infer until the first rows are there."""
    warm_edges(path)
    graph = placed(path)
    model = khop.models.SAGE.for_graph(graph, hidden=64, layers=2, label="y")
    drop_cache(path / X)
    started, out, seconds = time.perf_counter(), path.with_name("inferred.npy"), list[float]()

    def stop(done: int, total: int) -> None:
        seconds.append(time.perf_counter() - started)
        raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        khop.infer(model, graph, out, progress=stop)
    shutil.rmtree(out.with_name(out.name + ".unfinished"), ignore_errors=True)
    return {"seconds": seconds[0]}


def build(path: Path, edges: float) -> dict[str, float]:
    """Write a graph without columns; the CPU time is less that of making the edges."""
    count = int(edges)
    nodes = max(count // 15, 1)
    before = time.process_time()
    for _ in random_edges(nodes, min(count, 1 << 26)):
        pass
    making = (time.process_time() - before) * max(1.0, count / (1 << 26))
    before, started = time.process_time(), time.perf_counter()
    with anonymous_peak() as peak:
        khop.write_graph(
            path,
            {"node": khop.NodeTable(nodes)},
            {"node to node": khop.EdgeChunks(random_edges(nodes, count))},
            memory=768_000_000,
            threads=2,
        )
    seconds, cpu = time.perf_counter() - started, time.process_time() - before
    return {"seconds": seconds, "cpu": cpu - making, "peak": float(peak[0])}


def info(path: Path) -> dict[str, float]:
    """Run the command, and return the most memory that was resident, pages of files included."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "khop", "info", str(path)], check=True, stdout=subprocess.PIPE)
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "peak": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024.0}


def ldg(path: Path) -> dict[str, float]:
    """Partition the graph; the time of LDG is that of its passes."""
    parts, passes = path.with_name(f"{path.name}-parts"), list[float]()

    def notice(what: str, done: int, total: int) -> None:
        if what in ("clustering", "placing clusters", "placing nodes", "moving nodes"):
            passes.append(time.perf_counter())

    started = time.perf_counter()
    with anonymous_peak() as peak:
        khop.partition_graph(path, parts, 4, method="ldg", threads=2, notice=notice)
    found = {"all": time.perf_counter() - started, "seconds": passes[-1] - passes[0], "peak": float(peak[0])}
    shutil.rmtree(parts)
    return found


@contextmanager
def anonymous_peak() -> Iterator[list[int]]:
    """Yield a list of one number: the most anonymous memory of this process inside the block."""
    peak, ended = [0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.02):
            line = next(
                line for line in Path("/proc/self/status").read_text().splitlines() if "RssAnon" in line
            )
            peak[0] = max(peak[0], int(line.split()[1]) * 1024)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        ended.set()
        watcher.join()


def sampling(path: Path) -> dict[str, float]:
    """Sample with one thread, edges warm; the CPU time is of the process."""
    warm_edges(path)
    graph = khop.open_graph(path)
    sampler = khop.NeighborSampler(graph, FANOUTS)
    loader = khop.Loader(sampler, {"node": "all"}, BATCH, shuffle=True, threads=1, prefetch=1)
    edges, started, used = 0, time.perf_counter(), time.process_time()
    for step, batch in zip(range(24), loader, strict=False):
        if step < 4:
            started, used = time.perf_counter(), time.process_time()
            continue
        edges += sum(a.indices.numel() for block in batch.blocks for a in block.adjacencies.values())
    seconds, cpu = time.perf_counter() - started, time.process_time() - used
    return {"ns_per_edge": seconds * 1e9 / edges, "cpu_ns_per_edge": cpu * 1e9 / edges, "edges": float(edges)}


def drop_cache(file: Path) -> None:
    """Let the kernel forget the pages of a file."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def bytes_read() -> int:
    """Bytes that this process let the disk read so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def peak_anonymous() -> int:
    """Peak of resident memory, less the pages of files that are resident now."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    peak, files = (int(fields[name].split()[0]) * 1024 for name in ("VmHWM", "RssFile"))
    return peak - files


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


MEASURES: dict[str, Callable[..., dict[str, float]]] = {
    "limit": limit_of_disk,
    "disk": gathering(of_disk),
    "mapped": gathering(of_mapping),
    "no_advice": gathering(unadvised, UNADVISED_ROWS),
    "first_batch": first_batch,
    "steady": steady,
    "sampling": sampling,
    "planned": planned,
    "inferring": inferring,
    "first_line": first_line,
    "build": build,
    "info": info,
    "ldg": ldg,
}

if __name__ == "__main__":
    main()
