"""What does khop.pyg.NeighborLoader cost beside khop.Loader, where both do the same work?

The same graph, seeds, fanouts [15, 10, 5], batches of 1024, two threads each: neighbors, edge ids, two
columns of all nodes, and an int64 edge_index, which the native loop makes of every batch as a user of
torch_geometric's layers would. Rounds take turns in one process.

usage: python benchmarks/pyg_loader.py [--graph products] [--rounds 5] [--batches 20]
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from common_arguments import parsed
from harness import Figure, report

import khop
from khop.process_tuning import tune_memory
from khop.pyg import NeighborLoader

FANOUTS = [15, 10, 5]
SETTINGS = {"batch_size": 1024, "shuffle": True}


def main() -> None:
    arguments = parsed(__doc__)
    tune_memory()
    graph = khop.open_graph(Path(arguments.graph) / "graph")
    (seeds,) = graph.split("train").values()
    data = khop.graph_to_pyg(graph)
    for name in set(data.node_attrs()) - {"x", "y"}:
        del data[name]
    theirs = NeighborLoader(data, FANOUTS, seeds, num_workers=2, **SETTINGS)
    sampler = khop.NeighborSampler(graph, FANOUTS, expansion=khop.Expansion.SUBGRAPH, edge_ids=True)
    native = khop.Loader(sampler, seeds, columns=["x", "y"], threads=2, **SETTINGS)

    def native_batches(number: int) -> Iterator[object]:
        for batch in native.epoch(number):
            assert batch.sample.subgraph is not None
            yield next(iter(batch.sample.subgraph.adjacencies.values())).edge_index

    contenders: dict[str, Callable[[int], Iterator[object]]] = {
        "khop.Loader": native_batches,
        "khop.pyg.NeighborLoader": lambda number: iter(theirs),
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(arguments.rounds + 1):
        for name, batches_of in contenders.items():
            taken = milliseconds(batches_of(number), arguments.batches)
            if number > 0:  # the first round warms
                times[name].append(taken)
            print(f"round {number} {name:<24} {taken:8.2f} ms/batch", flush=True)
    own, found = (statistics.median(of_rounds) for of_rounds in times.values())
    figures = [
        Figure("loader of subgraphs, khop.Loader", round(own, 3), "ms/batch"),
        Figure("loader of subgraphs, khop.pyg over khop.Loader", round(found / own, 3), "times"),
    ]
    report("pyg_loader", figures)


def milliseconds(batches: Iterator[object], count: int) -> float:
    """Per batch, after the first two."""
    for _ in islice(batches, 2):
        pass
    started = time.perf_counter()
    made = sum(1 for _ in islice(batches, count))
    taken = time.perf_counter() - started
    batches.close()  # type: ignore[attr-defined]
    return 1000 * taken / made


if __name__ == "__main__":
    main()
