"""How many edges do the parts cut, how fast are they found, and in how much memory?

Four parts of Debian's package graph, of the products-like graph and of one with nine tenths of the edges in
communities; two threads, 5 % slack, nodes and training seeds balanced. Memory is the most anonymous memory
at any moment beyond what the process had before: mapped files do not count. METIS balances nodes only, has
one thread and one round, and takes 18 GB for the products-like graph.

usage: python benchmarks/partition.py [graph ...] [--methods ldg fennel metis random] [--rounds 3]
       (default: debian products clustered, all methods)
What is not run keeps its last figures.
"""

from __future__ import annotations

import argparse
import json
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import graphs
from harness import RESULTS, Figure, report

from khop.api.partition import partition_graph
from khop.data.builtin import builtin_folder
from khop.graph.folder import open_folder
from khop.graph.partitions.book import PartitionBook
from khop.user_cache import cache_folder

PARTS, THREADS = 4, 2
METHODS = ("ldg", "fennel", "metis", "random")


@contextmanager
def watched() -> Iterator[list[float]]:
    """A list of one number: MiB of anonymous memory at the most, beyond that at the start."""
    most, done = [0.0], threading.Event()
    before = anonymous_mib()

    def watch() -> None:
        while not done.wait(0.02):
            most[0] = max(most[0], anonymous_mib() - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    yield most
    done.set()
    watcher.join()


def anonymous_mib() -> float:
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["RssAnon"].split()[0]) / 1024


def cut_once(graph: Path, method: str, out: Path) -> tuple[PartitionBook, float, float, float]:
    """The book, seconds until the parts were known, seconds in all, MiB."""
    shutil.rmtree(out, ignore_errors=True)
    begun = time.perf_counter()
    known: list[float] = []

    def notice(what: str, done: int, total: int) -> None:
        if what.startswith("part 0") and not known:
            known.append(time.perf_counter() - begun)

    with watched() as most:
        book = partition_graph(graph, out, PARTS, method=method, threads=THREADS, notice=notice)
    return book, known[0], time.perf_counter() - begun, most[0]


def share_cut(name: str, method: str) -> str:
    return f"{name}: share of edges cut by {method}"


def figures_of(
    name: str, graph: Path, methods: Sequence[str], rounds: int, kept: Mapping[str, Figure]
) -> Iterator[Figure]:
    folder = open_folder(graph)
    edges = sum(folder.num_edges(edge_type) for edge_type in folder.schema.edge_types)
    runs: dict[str, list[tuple[PartitionBook, float, float, float]]] = {method: [] for method in methods}
    with TemporaryDirectory() as place:
        for _ in range(rounds):
            for method in methods:
                if method != "metis" or not runs[method]:
                    runs[method].append(cut_once(graph, method, Path(place) / "parts"))
    cuts = {
        method: kept[share_cut(name, method)].value for method in METHODS if share_cut(name, method) in kept
    }
    cuts |= {method: of_method[0][0].quality.cut["all"] for method, of_method in runs.items()}
    for method, of_method in runs.items():
        notes: dict[str, object] = {
            f"over {label}": round(cuts[method] / cuts[other], 3)
            for label, other in (("random", "random"), ("METIS", "metis"))
            if other in cuts
        }
        notes["balance"] = {k: round(max(v), 3) for k, v in of_method[0][0].quality.shares.items()}
        yield Figure(share_cut(name, method), round(cuts[method], 4), "", notes=notes)
        known, whole = ([run[which] for run in of_method] for which in (1, 2))
        rates = sorted(edges / seconds / 1e6 for seconds in known)
        yield Figure(
            f"{name}: {method}, edges a second until the parts are known",
            round(median(rates), 2),
            "M/s",
            spread=(round(rates[0], 2), round(rates[-1], 2)),
            notes={"edges": edges, "seconds": round(median(known), 2), "rounds": len(of_method)},
        )
        yield Figure(f"{name}: {method}, parts written and counted", round(median(whole), 2), "s")
        yield Figure(f"{name}: {method}, memory at the most", round(max(run[3] for run in of_method)), "MiB")


def folder_of(name: str) -> Path:
    return builtin_folder(name, cache_folder()) if name == "debian" else graphs.make(name) / "graph"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("graphs", nargs="*", default=["debian", "products", "clustered"])
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    file = RESULTS / "partition.json"
    before = json.loads(file.read_text())["figures"] if file.exists() else []
    figures = {figure["figure"]: Figure(**figure) for figure in before}
    for name in arguments.graphs:
        found = figures_of(name, folder_of(name), arguments.methods, arguments.rounds, figures)
        figures |= {figure.figure: figure for figure in found}
        report("partition", list(figures.values()))


if __name__ == "__main__":
    main()
